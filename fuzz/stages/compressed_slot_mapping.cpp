// compressed_slot_mapping, with the compressed lengths of the sequences: generator, reference and
// kernel side by side. The lengths are host code in the original.
#include "reference/stages/compressed_slot_mapping.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "device/launch/compressed_slot_mapping.hpp"
#include "fuzz/laws/adds_up.hpp"
#include "fuzz/stages/content.hpp"
#include "fuzz/stages/indexer_content.hpp"
#include "fuzz/stages/indexer_kernels.hpp"

namespace monoref {
namespace {

constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();

/// Sequences that the table holds up to its last column, or a little beyond it.
std::vector<std::int64_t> drawn_seq_lens(const Params& params, std::int64_t capacity,
                                         const std::vector<std::int64_t>& queries,
                                         std::uint64_t seed) {
  CounterRandom random(seed, "seq_lens");
  const auto kind = static_cast<Sequence>(params["sequences"]);
  std::vector<std::int64_t> lengths;
  for (const std::int64_t query : queries)
    lengths.push_back(make_seq_len(
        kind, {.query = query, .unit = sharing_unit(params), .limit = capacity}, random));
  return lengths;
}

/// A block of several ranks is a whole number of runs.
std::int64_t storage_block_size(const Params& params) {
  const std::int64_t size = params["storage_block_size"];
  if (params["world"] == 1) return size;
  return (size + params["interleave"] - 1) / params["interleave"] * params["interleave"];
}

std::string_view applicable_defect(const Params& params) {
  const std::string_view defect = params.word("defect");
  if (defect == "query_start_loc_falls" && params["requests"] < 2) return "none";
  if (defect == "broken_run" && (params["world"] == 1 || params["interleave"] == 1)) return "none";
  if (params["requests"] == 0 && (defect == "table_row_missing" || defect == "negative_length"))
    return "none";
  return defect;
}

Case build(const Params& params, const Contract&, std::uint64_t seed) {
  CounterRandom query_random(seed, "query_start_loc");
  CounterRandom ids(seed, "block_table");
  const std::int64_t requests = params["requests"];
  const std::int64_t width = params["width"];
  std::int64_t block_size = storage_block_size(params);
  const std::int64_t capacity = std::min<std::int64_t>(
      kInt32Max - 100,
      width * block_size * params["world"] * std::max<std::int64_t>(params["compress_ratio"], 1));
  const auto queries = make_query_lens(static_cast<QueryMix>(params["query_mix"]), requests,
                                       params["q_len"], query_random);
  auto lengths = drawn_seq_lens(params, capacity, queries, seed);
  auto starts = prefix_sums(queries);
  std::int64_t slots = starts.back() + params["padding_tokens"];
  const std::string defect(applicable_defect(params));
  if (defect == "query_start_loc_falls") starts[1] = starts.back() + 1;
  if (defect == "negative_length") lengths.back() = -1;
  if (defect == "slots_missing") slots = std::max<std::int64_t>(starts.back() - 1, 0);
  if (defect == "broken_run") block_size += 1;
  const std::int64_t rows = defect == "table_row_missing" ? requests - 1 : requests;
  auto table =
      make_block_ids(static_cast<TableIds>(params["table_ids"]), rows * width, kInt32Max, ids);
  for (auto& id : table)
    if (params["unused_blocks"] != 0 && ids.once_in(4)) id = -1;
  Case item;
  item.scalars = cache_sharing_scalars(params);
  item.scalars.insert(
      item.scalars.end(),
      {{"storage_block_size", block_size},
       {"slot_count", slots},
       {"defect", defect == "slots_missing" && starts.back() == 0 ? std::string("none") : defect}});
  item.inputs = {
      {"query_start_loc", vector_of(DType::kInt32, starts)},
      {"seq_lens", vector_of(DType::kInt32, lengths)},
      {"block_table", padded_rows(DType::kInt32, rows, width, params["table_row_gap"], table)}};
  return item;
}

CompressedSlotMappingInput input_of(const Case& item) {
  return {.query_start_loc = item.input("query_start_loc").view<std::int32_t, 1>(),
          .seq_lens = item.input("seq_lens").view<std::int32_t, 1>(),
          .block_table = item.input("block_table").view<std::int32_t, 2>(),
          .pages = {.storage_block_size = item.integer("storage_block_size"),
                    .compress_ratio = item.integer("compress_ratio"),
                    .context_parallel = context_parallel_of(item)}};
}

std::vector<OutputSpec> outputs(const Case& item) {
  const std::int64_t slots = item.integer("slot_count");
  check_compressed_slot_mapping(input_of(item), {View<std::int64_t, 1>(nullptr, {slots}, {1})});
  return {{"slot_mapping", DType::kInt64, Layout::dense({slots}), {"token"}, ""},
          {"compressed_seq_lens",
           DType::kInt32,
           Layout::dense({item.input("seq_lens").dim(0)}),
           {"request"},
           "",
           true}};
}

void reference(const Case& item, Outputs& out) {
  compressed_slot_mapping(input_of(item), {out[0].tensor.view<std::int64_t, 1>()});
  compressed_seq_lens({item.input("seq_lens").view<std::int32_t, 1>(),
                       item.integer("compress_ratio"), context_parallel_of(item)},
                      {out[1].tensor.view<std::int32_t, 1>()});
}

void launch(const Case& item, const Launcher& launcher) {
  const CompressedSlotMappingInput input = input_of(item);
  launcher.enqueue(device::launch::CompressedSlotMapping{
      .query_start_loc = launcher.address<const std::int32_t>("query_start_loc"),
      .seq_lens = launcher.address<const std::int32_t>("seq_lens"),
      .block_table = launcher.address<const std::int32_t>("block_table"),
      .table_row_stride = input.block_table.stride(0),
      .slot_mapping = launcher.address<std::int64_t>("out.slot_mapping"),
      .requests = input.seq_lens.dim(0),
      .slot_count = item.integer("slot_count"),
      .width = input.block_table.dim(1),
      .storage_block_size = input.pages.storage_block_size,
      .sharing = cache_sharing(input.pages.compress_ratio, input.pages.context_parallel)});
}

/// The tokens of the case in order, without padding: their requests and positions.
struct TokenPlace {
  std::int64_t request;
  std::int64_t position;
};

std::vector<TokenPlace> token_places(const Case& item) {
  const auto starts = numbers_of(item.input("query_start_loc"));
  const auto lengths = numbers_of(item.input("seq_lens"));
  std::vector<TokenPlace> places;
  for (std::size_t request = 0; request < lengths.size(); ++request)
    for (std::int64_t token = starts[request]; token < starts[request + 1]; ++token)
      places.push_back(
          {static_cast<std::int64_t>(request), lengths[request] - starts[request + 1] + token});
  return places;
}

/// A case of one-token queries at the given places: each token is a decode of its own.
Case as_decodes(const Case& item, const std::vector<TokenPlace>& places) {
  std::vector<std::int64_t> rows;
  std::vector<std::int64_t> lengths;
  for (const TokenPlace& place : places) {
    rows.push_back(place.request);
    lengths.push_back(place.position + 1);
  }
  std::vector<std::int64_t> starts(places.size() + 1);
  std::iota(starts.begin(), starts.end(), std::int64_t{0});
  Case decodes = item;
  set_input(decodes, "query_start_loc", vector_of(DType::kInt32, starts));
  set_input(decodes, "seq_lens", vector_of(DType::kInt32, lengths));
  set_input(decodes, "block_table", take_rows(item.input("block_table"), rows));
  set_scalar(decodes, "slot_count", std::ssize(places));
  return decodes;
}

/// Chunk of a prefill or decode: the slot of a token is the same, and the padding stores nothing.
std::optional<std::string> one_slot_function(const Case& item, const Outputs& out,
                                             const Evaluate& evaluate) {
  const auto slots = numbers_of(output(out, "slot_mapping"));
  const std::vector<TokenPlace> places = token_places(item);
  std::vector<TokenPlace> legal;  // a sequence cannot have a negative length
  std::vector<std::int64_t> expected;
  for (std::size_t token = 0; token < places.size(); ++token) {
    if (places[token].position < 0) continue;
    legal.push_back(places[token]);
    expected.push_back(slots[token]);
  }
  const auto alone = numbers_of(output(evaluate(as_decodes(item, legal)), "slot_mapping"));
  for (std::size_t i = 0; i < legal.size(); ++i)
    if (alone[i] != expected[i])
      return fmt::format("position {} of request {} has slot {} in the batch, {} as a decode",
                         legal[i].position, legal[i].request, expected[i], alone[i]);
  for (std::size_t token = places.size(); token < slots.size(); ++token)
    if (slots[token] != -1) return fmt::format("padding token {} has slot {}", token, slots[token]);
  return std::nullopt;
}

/// A group of keys is stored once over all ranks, when its last key arrives.
std::optional<std::string> one_owner(const Case& item, const Outputs&, const Evaluate& evaluate) {
  const std::int64_t ratio = std::max<std::int64_t>(item.integer("compress_ratio"), 1);
  const std::int64_t block = item.integer("storage_block_size") * item.integer("world");
  const auto table = item.input("block_table").view<std::int32_t, 2>();
  const std::vector<TokenPlace> places = token_places(item);
  std::vector<std::int64_t> owners(places.size(), 0);
  Case other = item;
  for (std::int64_t rank = 0; rank < item.integer("world"); ++rank) {
    set_scalar(other, "rank", rank);
    const auto slots = numbers_of(output(evaluate(other), "slot_mapping"));
    for (std::size_t token = 0; token < places.size(); ++token) owners[token] += slots[token] >= 0;
  }
  for (std::size_t token = 0; token < places.size(); ++token) {
    const auto [request, position] = places[token];
    const std::int64_t column = position < 0 ? table.dim(1) : position / ratio / block;
    const bool stored = position >= 0 && position % ratio == ratio - 1 && column < table.dim(1) &&
                        table(request, column) >= 0;
    if (owners[token] != (stored ? 1 : 0))
      return fmt::format("position {} of request {} is stored by {} ranks", position, request,
                         owners[token]);
  }
  return std::nullopt;
}

/// Where all blocks are different, so are all slots.
std::optional<std::string> slots_differ(const Case& item, const Outputs& out, const Evaluate&) {
  const auto table = item.input("block_table").view<std::int32_t, 2>();
  std::set<std::int32_t> ids;
  for (std::int64_t row = 0; row < table.dim(0); ++row)
    for (std::int64_t column = 0; column < table.dim(1); ++column)
      if (table(row, column) >= 0 && !ids.insert(table(row, column)).second) return std::nullopt;
  std::set<std::int64_t> seen;
  for (const std::int64_t slot : numbers_of(output(out, "slot_mapping")))
    if (slot != -1 && !seen.insert(slot).second) return fmt::format("slot {} is given twice", slot);
  return std::nullopt;
}

/// Slots of a whole sequence, counted, are its compressed length.
std::optional<std::string> lengths_count_slots(const Case& item, const Outputs& out,
                                               const Evaluate& evaluate) {
  constexpr std::int64_t kLongest = 2000;
  const auto lengths = numbers_of(item.input("seq_lens"));
  const auto compressed = numbers_of(output(out, "compressed_seq_lens"));
  for (std::size_t request = 0; request < std::min<std::size_t>(lengths.size(), 4); ++request) {
    const std::int64_t length = lengths[request];
    if (length > kLongest) continue;
    std::vector<std::int64_t> ids(static_cast<std::size_t>(length + 1));
    std::iota(ids.begin(), ids.end(), std::int64_t{1});
    Case whole = item;
    set_input(whole, "query_start_loc", vector_of(DType::kInt32, {0, length}));
    set_input(whole, "seq_lens", vector_of(DType::kInt32, {length}));
    set_input(whole, "block_table",
              padded_rows(DType::kInt32, 1, length + 1, 0, {ids.begin(), ids.end()}));
    set_scalar(whole, "slot_count", length);
    const auto slots = numbers_of(output(evaluate(whole), "slot_mapping"));
    const auto stored =
        std::count_if(slots.begin(), slots.end(), [](auto slot) { return slot >= 0; });
    if (stored != compressed[request])
      return fmt::format("a sequence of {} tokens stores {} keys, its compressed length is {}",
                         length, stored, compressed[request]);
  }
  return std::nullopt;
}

}  // namespace

Stage compressed_slot_mapping_stage() {
  Stage stage;
  stage.name = "compressed_slot_mapping";
  stage.summary = "where each token stores its compressed key, and compressed lengths";
  stage.source =
      "deepseek-indexer-metadata: get_compressed_slot_mapping; recordings: "
      "indexer_metadata";
  stage.dimensions = joined(
      {
          {"requests", 1, 0, 6, {0, 1, 2, 33}, {}, "requests"},
          query_mix_dimension(),
          {"q_len", 1, 1, 12, {1, 2, 4, 128, 130}, {}, "longest query"},
          {"padding_tokens", 0, 0, 4, {0, 70}, {}, "slots behind the last request"},
          sequence_dimension(),
          {"storage_block_size",
           1,
           1,
           70,
           {1, 2, 16, 64, 65536},
           {},
           "keys a block (whole runs where ranks share it)"},
          {"width", 1, 0, 8, {1, 2, 65}, {}, "columns of the block table"},
          {"table_row_gap", 0, 0, 4, {}, {}, "elements between rows of the block table"},
          {"unused_blocks", 0, 0, 1, {}, {}, "some columns name no block"},
      },
      joined(cache_sharing_dimensions(),
             {
                 table_ids_dimension(),
                 defect_dimension(14, {"table_row_missing", "negative_length",
                                       "query_start_loc_falls", "slots_missing", "broken_run"}),
             }));
  stage.inputs = {
      {"query_start_loc", {DType::kInt32}, {"starts"}},
      {"seq_lens", {DType::kInt32}, {"requests"}},
      {"block_table", {DType::kInt32}, {"rows of the table", "width"}, InputStorage::kRows}};
  stage.scalars = joined(cache_sharing_specs(),
                         {ScalarSpec::integer("storage_block_size", 1, limits::kStorageBlock),
                          ScalarSpec::integer("slot_count", 0, limits::kTokens)});
  stage.build = build;
  stage.outputs = outputs;
  stage.reference = reference;
  stage.launch = launch;
  stage.properties = {
      {"one_slot_function", "a token has the same slot in a prefill and as a decode (P09)",
       one_slot_function},
      {"partition", "a complete group of keys is stored by exactly one rank", one_owner},
      {"injectivity", "different tokens have different slots", slots_differ},
      {"lengths_count_slots", "a compressed length is the number of keys the sequence stores",
       lengths_count_slots},
      laws::no_ratio(),
  };
  return stage;
}

}  // namespace monoref
