// The properties of stage indexer_metadata_build.
#include <algorithm>
#include <numeric>

#include "fuzz/laws/adds_up.hpp"
#include "fuzz/stages/content.hpp"
#include "fuzz/stages/indexer_content.hpp"
#include "fuzz/stages/indexer_metadata_case.hpp"
#include "fuzz/stages/indexer_metadata_recording.hpp"

namespace monoref {
namespace {

/// The case with the first `requests` requests only, and without padding tokens.
Case first_requests(const Case& item, std::int64_t requests) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(requests));
  std::iota(rows.begin(), rows.end(), std::int64_t{0});
  const auto starts = numbers_of(item.input("query_start_loc"));
  const std::int64_t tokens = starts[static_cast<std::size_t>(requests)];
  std::vector<std::int64_t> kept(static_cast<std::size_t>(tokens));
  std::iota(kept.begin(), kept.end(), std::int64_t{0});
  Case part = item;
  for (NamedTensor& input : part.inputs) {
    if (input.name == "query_start_loc")
      input.tensor = vector_of(DType::kInt32, {starts.begin(), starts.begin() + requests + 1});
    else
      input.tensor = take_rows(input.tensor, input.name == "slot_mapping" ? kept : rows);
  }
  return part;
}

/// A step whose table is wider than that of the case: the expanded table has to grow.
Case with_wider_table(const Case& item) {
  const Tensor& table = item.input("block_table");
  const std::int64_t width = table.dim(1) + 100;
  Case wide = item;
  set_input(
      wide, "block_table",
      padded_rows(DType::kInt32, table.dim(0), width, 0,
                  std::vector<std::int32_t>(static_cast<std::size_t>(table.dim(0) * width), 9)));
  return wide;
}

/// The same rows, where the first table may have columns of zeros behind those of the second.
bool same_rows_then_zeros(View<const std::int32_t, 2> wide, View<const std::int32_t, 2> narrow) {
  if (wide.dim(0) != narrow.dim(0) || wide.dim(1) < narrow.dim(1)) return false;
  for (std::int64_t row = 0; row < wide.dim(0); ++row)
    for (std::int64_t column = 0; column < wide.dim(1); ++column)
      if (wide(row, column) != (column < narrow.dim(1) ? narrow(row, column) : 0)) return false;
  return true;
}

/// What a step through buffers that others have used has in common with fresh ones.
std::optional<std::string> step_differs(const IndexerMetadata& step, const IndexerBuffers& buffers,
                                        const Outputs& fresh) {
  std::vector<std::int64_t> slots;
  for (std::int64_t token = 0; token < step.slot_mapping.dim(0); ++token)
    slots.push_back(step.slot_mapping(token));
  if (slots != numbers_of(output(fresh, "slot_mapping"))) return "slots depend on earlier steps";
  if (!step.decode) return std::nullopt;
  const std::vector<std::int64_t> lengths(buffers.decode_seq_lens.begin(),
                                          buffers.decode_seq_lens.end());
  if (lengths != numbers_of(output(fresh, "decode_seq_lens")))
    return "decode lengths, or what lies behind them, depend on earlier steps";
  if (!same_rows_then_zeros(step.decode->block_table,
                            output(fresh, "decode_block_table").view<std::int32_t, 2>()))
    return "the decodes' block table depends on earlier steps";
  return std::nullopt;
}

/// Steps of a falling and a rising batch through one builder's buffers, the case again and again
/// between them.
std::optional<std::string> steps_do_not_mix(const Case& item, const Outputs& out, const Evaluate&) {
  const IndexerConfig config = indexer_config_of(item);
  IndexerBuffers buffers(config);
  const std::int64_t requests = item.input("seq_lens").dim(0);
  const Case half = first_requests(item, (requests + 1) / 2);
  const Case one = first_requests(item, std::min<std::int64_t>(requests, 1));
  const Case wide = with_wider_table(item);
  for (const Case* earlier : {&half, &one, &wide}) {
    try {
      indexer_metadata_build(config, buffers, indexer_batch_of(*earlier));
    } catch (const Refusal&) {
      continue;  // the original has no such step; nothing of it is written
    }
    const IndexerMetadata step = indexer_metadata_build(config, buffers, indexer_batch_of(item));
    if (auto broken = step_differs(step, buffers, out)) return broken;
  }
  return std::nullopt;
}

/// Padding of a captured graph behind a batch of decodes changes nothing of them.
std::optional<std::string> padding_changes_nothing(const Case& item, const Outputs& out,
                                                   const Evaluate& evaluate) {
  if (number(out, "num_prefills") != 0 || number(out, "num_decodes") == 0) return std::nullopt;
  const std::int64_t requests = item.input("seq_lens").dim(0);
  const std::int64_t tokens = item.input("slot_mapping").dim(0);
  auto starts = numbers_of(item.input("query_start_loc"));
  auto slots = numbers_of(item.input("slot_mapping"));
  starts.insert(starts.end(), 2, starts.back());
  slots.insert(slots.end(), 3, 777);
  std::vector<std::int64_t> rows(static_cast<std::size_t>(requests));
  std::iota(rows.begin(), rows.end(), std::int64_t{0});
  rows.insert(rows.end(), 2, 0);
  Case padded = item;
  for (NamedTensor& input : padded.inputs)
    if (input.name == "block_table") {
      input.tensor = take_rows(input.tensor, rows);
    } else if (input.name != "query_start_loc" && input.name != "slot_mapping") {
      auto lengths = numbers_of(input.tensor);
      lengths.insert(lengths.end(), 2, 0);
      input.tensor = vector_of(DType::kInt32, lengths);
    }
  set_input(padded, "query_start_loc", vector_of(DType::kInt32, starts));
  set_input(padded, "slot_mapping", vector_of(DType::kInt64, slots));
  // Two requests of any query length, and three tokens.
  const std::int64_t most_rows =
      item.integer("max_num_batched_tokens") + 2 * (item.integer("num_speculative_tokens") + 1) + 3;
  if (most_rows > limits::kTokens) return std::nullopt;
  set_scalar(padded, "max_num_batched_tokens", most_rows);
  const Outputs got = evaluate(padded);
  if (number(got, "num_prefills") != 0) return "padding requests have become prefills";
  if (number(got, "decode_max_seq_len") != number(out, "decode_max_seq_len"))
    return "padding moves the scorer's bound";
  const std::int64_t live = output(out, "decode_seq_lens_shape").view<std::int64_t, 1>()(0) *
                            output(out, "decode_seq_lens_shape").view<std::int64_t, 1>()(1);
  for (std::int64_t row = 0; row < live; ++row)
    if (!same_row(output(out, "decode_seq_lens"), row, output(got, "decode_seq_lens"), row))
      return fmt::format("decode length {} changes with padding", row);
  // The original's table of a uniform batch may be too narrow, that of a padded one grows.
  const Tensor& table = output(out, "decode_block_table");
  const bool whole = table.dim(1) >= item.input("block_table").dim(1);
  for (std::int64_t row = 0; whole && row < table.dim(0); ++row)
    if (!same_row(output(out, "decode_block_table"), row, output(got, "decode_block_table"), row))
      return fmt::format("decode table row {} changes with padding", row);
  for (std::int64_t token = 0; token < tokens; ++token)
    if (!same_row(output(out, "slot_mapping"), token, output(got, "slot_mapping"), token))
      return fmt::format("slot {} changes with padding", token);
  return std::nullopt;
}

std::optional<std::string> batch_is_split_once(const Case& item, const Outputs& out,
                                               const Evaluate&) {
  const auto starts = numbers_of(item.input("query_start_loc"));
  const std::int64_t decodes = number(out, "num_decodes");
  const std::int64_t prefills = number(out, "num_prefills");
  const std::int64_t tokens = item.input("slot_mapping").dim(0);
  if (decodes + prefills != std::ssize(starts) - 1)
    return fmt::format("{} decodes and {} prefills of {} requests", decodes, prefills,
                       std::ssize(starts) - 1);
  // Ours gives the padding tokens of an empty batch to nobody, the original to the decodes.
  const bool original = item.contract.decode_lengths == LengthRule::kAsSeed;
  if ((decodes + prefills > 0 || original) &&
      number(out, "num_decode_tokens") + number(out, "num_prefill_tokens") != tokens)
    return fmt::format("{} decode tokens and {} prefill tokens of {}",
                       number(out, "num_decode_tokens"), number(out, "num_prefill_tokens"), tokens);
  for (std::int64_t request = 0; request < decodes; ++request) {
    const auto at = static_cast<std::size_t>(request);
    if (starts[at + 1] - starts[at] > item.integer("num_speculative_tokens") + 1)
      return fmt::format("decode {} has {} query tokens", request, starts[at + 1] - starts[at]);
  }
  return std::nullopt;
}

/// Chunks hold each prefill query once, in order (but for those without any key on this rank), and
/// several requests only where the workspace has rows for all of them.
std::optional<std::string> chunks_are_valid(const Case& item, const Outputs& out, const Evaluate&) {
  const auto start = numbers_of(output(out, chunk_output("token_start")));
  const auto end = numbers_of(output(out, chunk_output("token_end")));
  const auto requests = numbers_of(output(out, chunk_output("num_reqs")));
  const auto keys = numbers_of(output(out, chunk_output("total_seq_lens")));
  const auto ke = numbers_of(output(out, chunk_output("cu_seqlen_ke")));
  const auto sums = numbers_of(output(out, chunk_output("cu_seq_lens")));
  const auto starts = numbers_of(item.input("query_start_loc"));
  std::int64_t token = starts[static_cast<std::size_t>(number(out, "num_decodes"))];
  std::size_t query = 0;
  std::size_t sum = 0;
  for (std::size_t chunk = 0; chunk < start.size(); ++chunk) {
    if (start[chunk] < token || end[chunk] <= start[chunk])
      return fmt::format("chunk {} holds tokens {} to {}, {} is next", chunk, start[chunk],
                         end[chunk], token);
    token = end[chunk];
    if (requests[chunk] > 1 && keys[chunk] > number(out, "max_prefill_buffer_size"))
      return fmt::format("chunk {} has {} key rows of {} requests", chunk, keys[chunk],
                         requests[chunk]);
    for (std::int64_t request = 0; request < requests[chunk]; ++request, ++sum)
      if (sums[sum] > sums[sum + 1] || sums[sum + 1] > keys[chunk])
        return fmt::format("prefix sums of chunk {} fall or leave it", chunk);
    ++sum;
    for (std::int64_t own = start[chunk]; own < end[chunk]; ++own, ++query)
      if (ke[query] > keys[chunk])
        return fmt::format("query {} scores key {} of {} in chunk {}", query, ke[query],
                           keys[chunk], chunk);
  }
  return token > starts.back() ? std::optional<std::string>("chunks reach into the padding")
                               : std::nullopt;
}

bool shares_decodes(const Case& item, const Outputs& out) {
  return item.integer("use_dcp_local") != 0 && number(out, "num_decodes") > 0;
}

/// Where the original would divide by a ratio of 0, it has 1 only.
bool may_have_ratio_0(const Case& item, const Outputs& out) {
  const bool local = item.integer("use_dcp_local") != 0 && item.integer("world") > 1;
  return item.contract.decode_lengths != LengthRule::kAsSeed ||
         (!local && number(out, "num_prefills") == 0);
}

}  // namespace

std::vector<Property> indexer_metadata_properties() {
  return {
      {"time_equality", "steps of falling and rising batches leave nothing behind (T06, D04)",
       steps_do_not_mix},
      {"padding_invariance", "padding requests and tokens change no decode (T26)",
       padding_changes_nothing},
      {"split", "every request and token belongs to one run, and decodes are short",
       batch_is_split_once},
      {"chunks", "chunks are disjoint, in order, and fit the workspace (T15)", chunks_are_valid},
      laws::adds_up({"decode_seq_lens"},
                    "the ranks' decode lengths add up to the global ones (T19)", shares_decodes),
      laws::no_ratio(may_have_ratio_0),
  };
}

}  // namespace monoref
