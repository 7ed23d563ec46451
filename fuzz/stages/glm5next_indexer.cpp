// glm5next_indexer: the helpers around GLM-5-next's pooled indexer, in three parts.
#include "fuzz/stages/glm5next_indexer.hpp"

#include <algorithm>
#include <iterator>
#include <limits>

#include "fuzz/stages/content.hpp"
#include "fuzz/stages/indexer_content.hpp"

namespace monoref {
namespace {

constexpr std::string_view kParts[] = {"decode", "pools", "workspace"};

const StagePart& part_named(std::string_view name) {
  static const StagePart parts[] = {glm5next_decode_part(), glm5next_pools_part(),
                                    glm5next_workspace_part()};
  for (std::size_t i = 0; i < std::size(kParts); ++i)
    if (kParts[i] == name) return parts[i];
  refuse("glm5next_indexer: part is '{}', must be one of {}", name, fmt::join(kParts, ", "));
}

const StagePart& part_of(const Case& item) {
  return part_named(item.word("part"));
}

Case adopt(const Recording& recording, const RecordedCase& recorded) {
  if (recording.stage == "glm5next_expand_pools") return adopt_glm5next_pools(recorded);
  Case item = recorded.find_scalar("kind") == nullptr ? adopt_glm5next_decode(recorded)
                                                      : adopt_glm5next_workspace(recorded);
  item.contract.decode_lengths = LengthRule::kAsSeed;  // it is the original's own text
  return item;
}

/// Every part's properties, each asked of the cases of its part only.
std::vector<Property> all_properties() {
  std::vector<Property> all;
  for (const std::string_view name : kParts)
    for (const Property& property : part_named(name).properties)
      all.push_back({property.name, property.statement,
                     [name, check = property.check](const Case& item, const Outputs& outputs,
                                                    const Evaluate& evaluate) {
                       return item.word("part") == name ? check(item, outputs, evaluate)
                                                        : std::nullopt;
                     }});
  return all;
}

std::vector<Dimension> all_dimensions() {
  return {
      Dimension::choice("part", {"decode", "pools", "workspace"}, "which helpers"),
      {"requests", 1, 0, 6, {0, 1, 2, 33, 65}, {}, "decodes"},
      {"next_n", 1, 1, 5, {1, 2, 3, 4, 8}, {}, "columns of the padded grid"},
      query_mix_dimension(),
      {"padded_though_uniform", 0, 0, 1, {}, {}, "a uniform batch goes through the padded grid"},
      {"more_tokens", 0, 0, 3, {}, {}, "prefill tokens behind the decodes"},
      Dimension::choice("element", {"float32", "uint8", "bfloat16", "int32", "int64"},
                        "element type of the tokens"),
      {"inner", 1, 0, 20, {1, 3, 16, 65, 128}, {}, "elements of a token"},
      {"token_gap", 0, 0, 4, {}, {}, "elements between tokens"},
      Dimension::choice("positions", {"ordinary", "nobody", "largest"}, "positions of the tokens"),
      {"topk_tokens", 1, 1, 70, {1, 3, 5, 12, 16, 256}, {}, "tokens that a row may select"},
      {"past_topk", 0, 0, 1, {0, 0, 0}, {}, "the longest sequence does not fit into a row"},
      {"rows", 1, 0, 6, {0, 1, 33}, {}, "rows of selected pools"},
      {"selected", 1, 0, 10, {1, 3, 5, 12, 16}, {}, "pools a row"},
      {"pool_size", 1, 1, 8, {1, 2, 4, 16, 64}, {}, "tokens a pool"},
      Dimension::choice("pools", {"some", "holes", "repeated", "none"}, "pools of a row"),
      Dimension::choice("pool_lengths", {"ordinary", "empty", "short", "boundary", "largest"},
                        "tokens of the rows' sequences"),
      {"row_gap", 0, 0, 4, {}, {}, "elements between rows of pools, tokens and the top-k buffer"},
      {"vector_step", 1, 1, 3, {}, {}, "stride of positions and pool ids"},
      {"head_blocks", 1, 1, 6, {2, 4}, {}, "head dim, in blocks of 32"},
      {"page_keys", 1, 0, 64, {1, 16, 64}, {}, "keys a page"},
      {"pages", 1, 0, 9, {}, {}, "pages of the cache"},
      {"page_gap", 0, 0, 300, {0, 1, 128}, {}, "bytes of a page behind its keys"},
      {"total_seq_lens", 0, 0, 9000, {0, 1}, {}, "keys of the workspace, before a random factor"},
      defect_dimension(15, {"length_past_grid", "negative_length", "sum_differs", "pool_incomplete",
                            "keys_past_page"}),
  };
}

std::vector<InputSpec> all_inputs() {
  const std::vector<DType> any{DType::kFloat32, DType::kUInt8, DType::kBFloat16, DType::kInt32,
                               DType::kInt64};
  std::vector<InputSpec> specs{
      {"decode_lens", {DType::kInt32}, {"requests"}},
      {"tokens", any, {"num_decode_tokens", "elements"}, InputStorage::kRows},
      {"positions", {DType::kInt64}, {"positions"}, InputStorage::kStrided},
      {"fill_positions", {DType::kInt64}, {"exact rows"}},
      {"topk_buffer", {DType::kInt32}, {"rows of the buffer", "topk_tokens"}, InputStorage::kRows}};
  for (InputSpec& spec : specs) spec.variant = "decode";
  specs.push_back(
      InputSpec{"pool_ids", {DType::kInt32}, {"rows", "selected"}, InputStorage::kStrided}.of(
          "pools"));
  specs.push_back(InputSpec{"seq_lens", {DType::kInt32}, {"rows"}}.of("pools"));
  return specs;
}

std::vector<ScalarSpec> all_scalars() {
  constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  return {
      ScalarSpec::word("part", {std::begin(kParts), std::end(kParts)}),
      ScalarSpec::integer("num_decode_tokens", 0, limits::kTokens).of("decode"),
      ScalarSpec::integer("next_n", 1, limits::kQueryLength).of("decode"),
      ScalarSpec::flag("requires_padding").of("decode"),
      ScalarSpec::integer("fill_max_seq_len", 0, limits::kExtent).of("decode"),
      ScalarSpec::integer("pad", kLeast, kMost).of("decode"),  // bits, cut to the element
      ScalarSpec::integer("pool_size", 1, limits::kPoolSize).of("pools"),
      ScalarSpec::row_gap("out_row_gap").of("pools"),
      ScalarSpec::integer("total_seq_lens", 0, limits::kExtent).of("workspace"),
      ScalarSpec::integer("head_dim", 1, limits::kHeadDim).of("workspace"),
      ScalarSpec::integer("num_blocks", 0, limits::kExtent).or_none().of("workspace"),
      ScalarSpec::integer("block_size", 0, limits::kStorageBlock).or_none().of("workspace"),
      ScalarSpec::integer("fp8_page_bytes", 0, limits::kExtent).or_none().of("workspace"),
      ScalarSpec::integer("fp4_page_bytes", 0, limits::kExtent).or_none().of("workspace"),
  };
}

}  // namespace

Stage glm5next_indexer_stage() {
  Stage stage;
  stage.name = "glm5next_indexer";
  stage.summary = "ragged decodes in a padded grid, exact short rows, pools expanded to tokens";
  stage.source = "glm5next-sparse-indexer; recordings: glm5next_expand_pools";
  stage.dimensions = all_dimensions();
  stage.contracts = {"mono", "mono,decode_lengths=as-seed"};
  stage.variant = "part";
  stage.inputs = all_inputs();
  stage.scalars = all_scalars();
  stage.build = [](const Params& params, const Contract& contract, std::uint64_t seed) {
    Params served = params;
    // The original's helpers of decodes need one.
    if (contract.decode_lengths == LengthRule::kAsSeed && params.word("part") == "decode")
      served.set("requests", std::max<std::int64_t>(params["requests"], 1));
    return part_named(params.word("part")).build(served, seed);
  };
  stage.outputs = [](const Case& item) { return part_of(item).outputs(item); };
  stage.reference = [](const Case& item, Outputs& out) { part_of(item).reference(item, out); };
  stage.launch = [](const Case& item, const Launcher& launcher) {
    if (const auto part_launch = part_of(item).launch) part_launch(item, launcher);
  };
  stage.recordings = {"glm5next_indexer", "glm5next_expand_pools"};
  stage.adopt = adopt;
  stage.properties = all_properties();
  return stage;
}

}  // namespace monoref
