// Part "pools" of glm5next_indexer: selected pools expanded to tokens, and the tail behind them.
#include <algorithm>
#include <numeric>
#include <set>

#include "device/launch/glm5next_indexer.hpp"
#include "fuzz/laws/permute.hpp"
#include "fuzz/stages/glm5next_indexer.hpp"
#include "fuzz/stages/indexer_content.hpp"
#include "reference/rules/glm5next_expand_pools.hpp"

namespace monoref {
namespace {

/// Ids of complete pools in no order, with unused places between them; from "repeated" also twice.
std::vector<std::int32_t> drawn_pools(std::string_view kind, std::int64_t selected,
                                      std::int64_t complete, CounterRandom& random) {
  std::vector<std::int32_t> all(static_cast<std::size_t>(std::min<std::int64_t>(complete, 64)));
  std::iota(all.begin(), all.end(), static_cast<std::int32_t>(complete - std::ssize(all)));
  for (std::size_t i = all.size(); i > 1; --i)
    std::swap(all[i - 1],
              all[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(i)))]);
  std::vector<std::int32_t> pools;
  for (std::int64_t place = 0; place < selected; ++place) {
    const bool unused = kind == "none" || (kind == "holes" && random.once_in(3));
    if (all.empty() || unused) {
      pools.push_back(-1);
    } else {
      pools.push_back(all.back());
      if (kind != "repeated" || random.once_in(2)) all.pop_back();
    }
  }
  return pools;
}

std::int64_t drawn_length(std::string_view kind, std::int64_t pool_size, CounterRandom& random) {
  if (kind == "empty") return 0;
  if (kind == "short") return random.below(pool_size);
  if (kind == "boundary")
    return std::max<std::int64_t>(0, pool_size * random.between(0, 20) + random.between(-1, 1));
  if (kind == "largest") return 2147483647 - random.below(pool_size + 1);
  return random.between(1, 400);
}

Case build(const Params& params, std::uint64_t seed) {
  CounterRandom pool_random(seed, "pool_ids");
  CounterRandom length_random(seed, "seq_lens");
  const std::int64_t rows = params["rows"];
  const std::int64_t selected = params["selected"];
  const std::int64_t pool_size = params["pool_size"];
  const std::int64_t step = params["vector_step"];
  std::string defect(params.word("defect"));
  if (defect != "pool_incomplete" || rows * selected == 0) defect = "none";
  Tensor pools(DType::kInt32,
               Layout::strided({rows, selected}, {selected * step + params["row_gap"], step}));
  pools.fill_bytes(std::byte{0xC3});
  auto ids = pools.view<std::int32_t, 2>();
  std::vector<std::int64_t> lengths;
  for (std::int64_t row = 0; row < rows; ++row) {
    lengths.push_back(drawn_length(params.word("pool_lengths"), pool_size, length_random));
    const auto drawn =
        drawn_pools(params.word("pools"), selected, lengths.back() / pool_size, pool_random);
    for (std::int64_t place = 0; place < selected; ++place)
      ids(row, place) = drawn[static_cast<std::size_t>(place)];
  }
  if (defect == "pool_incomplete")
    ids(rows - 1, selected - 1) = static_cast<std::int32_t>(lengths.back() / pool_size);
  Case item;
  item.scalars = {{"part", std::string("pools")},
                  {"pool_size", pool_size},
                  {"out_row_gap", params["row_gap"]},
                  {"defect", defect}};
  item.inputs = {{"pool_ids", std::move(pools)}, {"seq_lens", vector_of(DType::kInt32, lengths)}};
  return item;
}

ExpandPoolsInput input_of(const Case& item) {
  return {.pool_ids = item.input("pool_ids").view<std::int32_t, 2>(),
          .seq_lens = item.input("seq_lens").view<std::int32_t, 1>(),
          .pool_size = item.integer("pool_size")};
}

std::vector<OutputSpec> outputs(const Case& item) {
  const ExpandPoolsInput input = input_of(item);
  const std::int64_t columns = expanded_pool_columns(input);
  return {{"token_ids",
           DType::kInt32,
           Layout::strided({input.pool_ids.dim(0), columns},
                           {columns + row_gap(item, "out_row_gap"), 1}),
           {"row", "column"},
           ""}};
}

void reference(const Case& item, Outputs& out) {
  expand_pools_and_append_tail(input_of(item), out[0].tensor.view<std::int32_t, 2>());
}

void launch(const Case& item, const Launcher& launcher) {
  const Layout& pools = item.input("pool_ids").layout();
  const std::int64_t columns = expanded_pool_columns(input_of(item));
  launcher.enqueue(
      device::launch::ExpandPools{.pool_ids = launcher.address<const std::int32_t>("pool_ids"),
                                  .pool_row_stride = pools.strides[0],
                                  .pool_id_stride = pools.strides[1],
                                  .seq_lens = launcher.address<const std::int32_t>("seq_lens"),
                                  .token_ids = launcher.address<std::int32_t>("out.token_ids"),
                                  .token_row_stride = columns + row_gap(item, "out_row_gap"),
                                  .rows = pools.dims[0],
                                  .selected = pools.dims[1],
                                  .pool_size = item.integer("pool_size")});
}

/// Pools can be read back from their tokens, and the tail is what follows the last whole pool.
std::optional<std::string> expansion_can_be_undone(const Case& item, const Outputs& out,
                                                   const Evaluate&) {
  const auto pools = item.input("pool_ids").view<std::int32_t, 2>();
  const auto lengths = numbers_of(item.input("seq_lens"));
  const auto tokens = output(out, "token_ids").view<std::int32_t, 2>();
  const std::int64_t size = item.integer("pool_size");
  const std::int64_t tail = pools.dim(1) * size;
  for (std::int64_t row = 0; row < tokens.dim(0); ++row) {
    const std::int64_t length = lengths[static_cast<std::size_t>(row)];
    std::int64_t rest = 0;
    for (std::int64_t column = 0; column < tokens.dim(1); ++column) {
      const std::int64_t token = tokens(row, column);
      if (token < -1 || token >= length)
        return fmt::format("row {} of {} tokens names token {}", row, length, token);
      if (column < tail) {
        const std::int64_t pool = token < 0 ? -1 : token / size;
        if (pool != pools(row, column / size) || (token >= 0 && token % size != column % size))
          return fmt::format("row {} has token {} in column {}", row, token, column);
      } else if (token >= 0) {
        if (token / size != length / size)
          return fmt::format("row {} has token {} in its tail", row, token);
        ++rest;
      }
    }
    if (rest != length % size)
      return fmt::format("row {} of {} tokens has a tail of {}", row, length, rest);
  }
  return std::nullopt;
}

/// Different pools have different tokens, and none of them is in the tail.
std::optional<std::string> tokens_are_unique(const Case& item, const Outputs& out,
                                             const Evaluate&) {
  const auto pools = item.input("pool_ids").view<std::int32_t, 2>();
  const auto tokens = output(out, "token_ids").view<std::int32_t, 2>();
  for (std::int64_t row = 0; row < tokens.dim(0); ++row) {
    std::set<std::int32_t> ids;
    bool repeated = false;
    for (std::int64_t place = 0; place < pools.dim(1); ++place)
      repeated = repeated || (pools(row, place) >= 0 && !ids.insert(pools(row, place)).second);
    std::set<std::int32_t> seen;
    for (std::int64_t column = 0; column < tokens.dim(1) && !repeated; ++column)
      if (tokens(row, column) >= 0 && !seen.insert(tokens(row, column)).second)
        return fmt::format("row {} names token {} twice", row, tokens(row, column));
  }
  return std::nullopt;
}

}  // namespace

StagePart glm5next_pools_part() {
  return {
      build,
      outputs,
      reference,
      launch,
      {{"inverse", "pools can be read back from their tokens, and the tail is the rest",
        expansion_can_be_undone},
       {"unique_tokens", "different pools and the tail have different tokens", tokens_are_unique},
       laws::permute("row", {"pool_ids", "seq_lens"})}};
}

Case adopt_glm5next_pools(const RecordedCase& recorded) {
  Case item;
  item.scalars = {{"part", std::string("pools")}, {"pool_size", recorded.integer("pool_size")}};
  item.inputs = recorded.inputs;
  item.expected = {{"token_ids", recorded.output("token_ids"), std::nullopt}};
  return item;
}

}  // namespace monoref
