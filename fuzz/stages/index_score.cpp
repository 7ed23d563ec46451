// index_score: generator, reference and kernel side by side.
#include "reference/stages/index_score.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>

#include "device/launch/index_score.hpp"
#include "fuzz/inputs.hpp"
#include "fuzz/laws/definition.hpp"
#include "fuzz/laws/ignores.hpp"
#include "fuzz/laws/permute.hpp"
#include "fuzz/laws/scale.hpp"
#include "fuzz/laws/untouched.hpp"
#include "fuzz/stages/content.hpp"
#include "fuzz/stages/floats.hpp"
#include "fuzz/stages/step_rows.hpp"
#include "reference/rules/fp8_rules.hpp"

namespace monoref {
namespace {

constexpr std::int64_t kBlock = 128;
constexpr std::uint32_t kPoisonScore = 0x7F61B1E6;  // 3e38: what a wrong read of a score would find

/// The cache of a case: which physical blocks there are, and how far keys reach in each.
struct IndexBlocks {
  std::int64_t width = 1;
  std::vector<std::int32_t> ids;              ///< [requests, width]
  std::map<std::int64_t, std::int64_t> keys;  ///< of each physical block that some context reaches

  IndexBlocks(const StepRows& steps, std::int64_t columns, TableIds kind, std::int64_t limit,
              CounterRandom& random)
      : width(columns),
        ids(make_block_ids(kind, static_cast<std::int64_t>(steps.lengths.size()) * columns, limit,
                           random)) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::int64_t request = static_cast<std::int64_t>(i) / width;
      const std::int64_t first = static_cast<std::int64_t>(i) % width * kBlock;
      const std::int64_t length =
          std::max<std::int64_t>(steps.lengths[static_cast<std::size_t>(request)], 1);
      std::int64_t& reach = keys[ids[i]];
      reach = std::max(reach, std::clamp<std::int64_t>(length - first, 0, kBlock));
    }
  }
};

/// How keys look; "negative" ones make every dot with a non-negative query negative.
std::uint32_t key_code(std::string_view kind, DType type, CounterRandom& random) {
  const bool special = kind == "special" && random.once_in(64);
  if (type == DType::kBFloat16) {
    if (kind == "zero") return random.once_in(2) ? 0x8000u : 0u;
    std::uint16_t code = draw_bf16(special ? Floats::kSpecial : Floats::kOrdinary, random);
    if (kind == "coarse") code &= 0xFF80u;
    if (kind == "negative") code |= 0x8000u;
    return code;
  }
  const FloatFormat& format = float_format(type);
  std::uint32_t code = draw_code(format, special, random);
  if (kind == "zero") code = random.once_in(2) && format.has_negative_zero() ? 0x80u : 0u;
  if (kind == "coarse") code = (code & 0x80u) | 0x38u;
  if (kind == "negative") code |= 0x80u;
  return classify(format, code) == FloatClass::kNan && !special ? 0xB8u : code;
}

std::uint16_t query_code(std::string_view kind, CounterRandom& random) {
  if (kind == "negative") return draw_bf16(Floats::kOrdinary, random) & 0x7FFFu;
  if (kind == "coarse") return draw_bf16(Floats::kOrdinary, random) & 0xBF80u;
  if (kind == "zero" && random.once_in(2)) return random.once_in(2) ? 0x8000u : 0u;
  return draw_bf16(kind == "special" && random.once_in(128) ? Floats::kSpecial : Floats::kOrdinary,
                   random);
}

/// Keys that no context reaches are NaN: whoever lets one in is seen.
Tensor make_cache(const Params& params, DType type, const IndexBlocks& blocks, std::int64_t dim,
                  CounterRandom& random) {
  const std::int64_t token_stride = dim + 16 * params["token_gap"];
  const std::int64_t block_stride = kBlock * token_stride + 16 * params["block_gap"];
  const std::int64_t run = (kBlock - 1) * token_stride + dim;
  std::vector<std::int32_t> ids = blocks.ids;
  ids.push_back(0);  // a single run far from the start would be backed by memory from there on
  const std::int64_t count = *std::max_element(ids.begin(), ids.end()) + 1;
  Tensor cache(type, Layout{{count, kBlock, dim},
                            {block_stride, token_stride, 1},
                            stored_blocks(ids, block_stride, run)});
  cache.fill_bytes(std::byte{0xFF});
  const std::string_view kind = params.word("content");
  for (const auto& [block, reach] : blocks.keys)
    for (std::int64_t key = 0; key < reach; ++key)
      for (std::int64_t d = 0; d < dim; ++d) {
        const std::uint32_t code = key_code(kind, type, random);
        const std::int64_t at = block * block_stride + key * token_stride + d;
        if (type == DType::kBFloat16)
          reinterpret_cast<std::uint16_t*>(cache.base())[at] = static_cast<std::uint16_t>(code);
        else
          reinterpret_cast<std::uint8_t*>(cache.base())[at] = static_cast<std::uint8_t>(code);
      }
  return cache;
}

/// Scores in the kernels' order: a row's heads follow each other.
Layout score_layout(std::int64_t heads, std::int64_t rows, std::int64_t width, std::int64_t gap) {
  return Layout::strided({heads, rows, width}, {width + gap, heads * (width + gap), 1});
}

void plant_defect(Case& item, const std::string& defect) {
  if (defect == "lengths_fall") {
    const Tensor& lens = item.input("seq_lens");
    std::vector<std::int64_t> values(static_cast<std::size_t>(lens.dim(0)), 5);
    values.front() = 6;
    replace_input(item, "seq_lens", strided_vector(DType::kInt32, values, 1));
  } else if (defect == "rank_outside_world") {
    for (NamedScalar& scalar : item.scalars)
      if (scalar.name == "rank") scalar.value = std::int64_t{9};
  } else if (defect == "key_dim") {
    const Tensor& q = item.input("index_q");
    replace_input(item, "index_q",
                  Tensor(DType::kBFloat16, Layout::dense({q.dim(0), q.dim(1), q.dim(2) + 1})));
  }
}

/// A defect that this case can have.
std::string applicable_defect(const Params& params) {
  const std::string defect(params.word("defect"));
  const bool needs_rows =
      defect == "lengths_fall" && (params["requests"] == 0 || params["q_len"] < 2);
  return needs_rows ? "none" : defect;
}

Case build(const Params& params, const Contract& contract, std::uint64_t seed) {
  CounterRandom length_random(seed, "seq_lens");
  CounterRandom table_random(seed, "block_table");
  CounterRandom query_random(seed, "index_q");
  CounterRandom cache_random(seed, "index_cache");
  const std::int64_t heads = params["heads"];
  const std::int64_t dim = 16 * params["dim_units"];
  const DType type = params["bf16_cache"] != 0 ? DType::kBFloat16 : fp8_dtype(contract);
  const BlockSelection selection{.block_size = kBlock,
                                 .topk = params["topk"],
                                 .init_blocks = params["init_blocks"],
                                 .local_blocks = params["local_blocks"]};
  const StepRows steps = drawn_step_rows(params, selection, length_random);
  const std::int64_t width = steps.most_blocks(selection) + params["spare_columns"];
  const std::int64_t far = (std::int64_t{1} << 31) / (kBlock * dim) + 8;  // past 2^31 elements
  const IndexBlocks blocks(steps, width, static_cast<TableIds>(params["table_ids"]),
                           params.word("table_ids") == "large" ? far : std::int64_t{1} << 20,
                           table_random);
  const std::int64_t rows = steps.rows();
  const std::int64_t q_gap = params["q_gap"];
  const std::string_view kind = params.word("content");
  const std::int64_t world = params["world"];
  Case item;
  item.scalars = {
      {"q_len", params["q_len"]},
      {"sm_scale", std::ldexp(1.0 / std::sqrt(2.0), static_cast<int>(params["scale_exponent"]))},
      {"world", world},
      {"rank", params["rank"] % world},
      {"shard_from", params["shard_from"]}};
  add_selection(item, selection);
  item.inputs = {
      {"index_q", drawn_tensor(DType::kBFloat16,
                               Layout::strided({rows, heads, dim},
                                               {heads * (dim + q_gap) + q_gap, dim + q_gap, 1}),
                               [&] { return query_code(kind, query_random); })},
      {"index_cache", make_cache(params, type, blocks, dim, cache_random)},
      {"block_table", padded_rows(DType::kInt32, rows, width, params["table_row_gap"],
                                  steps.row_tables(blocks.ids, width))},
      {"seq_lens", strided_vector(DType::kInt32, steps.row_lengths(), params["vector_step"])},
      {"score", drawn_tensor(DType::kFloat32, score_layout(heads, rows, width, params["score_gap"]),
                             [] { return kPoisonScore; })}};
  const std::string defect = applicable_defect(params);
  item.scalars.push_back({"defect", defect});
  plant_defect(item, defect);
  return item;
}

IndexScoreInput input_of(const Case& item) {
  return {
      item.input("index_q").view<std::uint16_t, 3>(),
      item.input("index_cache"),
      item.input("block_table").view<std::int32_t, 2>(),
      item.input("seq_lens").view<std::int32_t, 1>(),
      item.integer("q_len"),
      item.real("sm_scale"),
      selection_of(item),
      {item.integer_or("world", 1), item.integer_or("rank", 0), item.integer_or("shard_from", 0)},
      item.contract};
}

/// The kernel reads keys in runs of 16 bytes.
void check_keys_are_aligned(const Case& item) {
  constexpr std::int64_t kRunBytes = 16;
  const Tensor& cache = item.input("index_cache");
  for (const std::size_t axis : {0, 1}) {
    const std::int64_t stride = cache.layout().strides[axis];
    const auto size = static_cast<std::int64_t>(cache.element_size());
    if (stride % (kRunBytes / size) != 0)
      refuse("index_score: index_cache has stride {} in dimension {}, must be a multiple of {}",
             stride, axis, kRunBytes / size);
  }
}

std::vector<OutputSpec> outputs(const Case& item) {
  check_keys_are_aligned(item);
  index_score_shape(input_of(item));
  return {
      {"score", DType::kFloat32, item.input("score").layout(), {"head", "row", "block"}, "score"}};
}

void reference(const Case& item, Outputs& out) {
  index_score_fast(input_of(item), {out[0].tensor.view<float, 3>()});
}

template <class Element>
void launch_as(const Case& item, const Launcher& launcher) {
  const Layout& q = item.input("index_q").layout();
  const Layout& cache = item.input("index_cache").layout();
  const Layout& table = item.input("block_table").layout();
  const Layout& score = item.input("score").layout();
  launcher.enqueue(device::launch::IndexScore<Element>{
      .q = launcher.address<const std::uint16_t>("index_q"),
      .q_row_stride = q.strides[0],
      .q_head_stride = q.strides[1],
      .cache = launcher.address<const Element>("index_cache"),
      .cache_block_stride = cache.strides[0],
      .cache_token_stride = cache.strides[1],
      .cache_blocks = cache.dims[0],
      .block_table = launcher.address<const std::int32_t>("block_table"),
      .table_row_stride = table.strides[0],
      .seq_lens = launcher.address<const std::int32_t>("seq_lens"),
      .seq_lens_stride = item.input("seq_lens").layout().strides[0],
      .scores = launcher.address<float>("out.score"),
      .score_row_stride = score.strides[1],
      .score_head_stride = score.strides[0],
      .rows = q.dims[0],
      .heads = q.dims[1],
      .dim = q.dims[2],
      .width = table.dims[1],
      .q_len = item.integer("q_len"),
      .topk = item.integer("topk"),
      .init_blocks = item.integer("init_blocks"),
      .local_blocks = item.integer("local_blocks"),
      .sm_scale = static_cast<float>(item.real("sm_scale")),
      .encoding = option(item.contract.fp8_encoding),
      .scaling = 1,
      .tables_of = 0,
      .world = item.integer("world"),
      .rank = item.integer("rank"),
      .shard_from = item.integer("shard_from")});
}

void launch(const Case& item, const Launcher& launcher) {
  if (item.input("index_cache").type() == DType::kBFloat16)
    launch_as<std::uint16_t>(item, launcher);
  else
    launch_as<std::uint8_t>(item, launcher);
}

std::int64_t query_rows(const Case& item) {
  return item.integer("q_len");
}

laws::OutputRegion scored_of(const Case& item) {
  return [input = input_of(item)](std::string_view, laws::Index at) {
    return is_scored(input, at[1], at[2]);
  };
}

/// What is not scored holds what it held before, row by row.
laws::OutputRegion scored(const Case& item, const Outputs&) {
  return scored_of(item);
}

bool scales_scores(const Case& item) {
  return item.contract.index_scores != IndexScores::kEveryBlock;
}

/// Pinned blocks and blocks of short contexts: their table entries may hold anything.
laws::Region unscored_entries(const Case& item) {
  return [input = input_of(item)](laws::Index at) { return !is_scored(input, at[0], at[1]); };
}

void define(const Case& item, Outputs& out) {
  index_score(input_of(item), {out[0].tensor.view<float, 3>()});
}

/// A dot for every key that the tables have room for.
std::int64_t work(const Case& item) {
  return item.input("index_q").layout().elements() * item.input("block_table").dim(1) * kBlock;
}

}  // namespace

Stage index_score_stage() {
  Stage stage;
  stage.name = "index_score";
  stage.summary = "the best key of every selectable block for each query row and index head";
  stage.source = "mono-decode section 4; upstream-semantics section 4.1";
  stage.contracts = {"mono", "mono,fp8_encoding=e4m3fnuz,fp8_max=240"};
  stage.dimensions = {
      {"requests", 1, 0, 3, {0, 1, 2}, {}, "requests of the step"},
      {"q_len", 1, 1, 4, {1, 2, 3, 4, 8}, {}, "query rows a request"},
      {"heads", 1, 1, 4, {1, 4}, {}, "index heads"},
      {"dim_units", 1, 1, 8, {1, 4, 8}, {}, "elements of a key, in sixteens"},
      {"topk", 1, 1, 3, {1, 1, 2, 16}, {}, "blocks that a context is taken whole up to"},
      {"init_blocks", 0, 0, 2, {}, {}, "pinned leading blocks"},
      {"local_blocks", 0, 0, 2, {0, 1}, {}, "pinned trailing blocks"},
      {"blocks", 1, 1, 5, {1, 2, 3, 17}, {}, "blocks that the longest context may have"},
      {"short_of_capacity", 0, 0, 127, {0, 1, 112, 127}, {}, "keys missing in the last block"},
      {"spare_columns", 0, 0, 3, {}, {}, "table columns that no context needs"},
      {"table_row_gap", 0, 0, 4, {}, {}, "elements between rows of the block table"},
      {"q_gap", 0, 0, 2, {}, {}, "elements between queries"},
      {"token_gap", 0, 0, 2, {}, {}, "elements between keys of the cache, in sixteens"},
      {"block_gap", 0, 0, 2, {}, {}, "elements between blocks of the cache, in sixteens"},
      {"score_gap", 0, 0, 3, {}, {}, "elements between rows of scores"},
      {"vector_step", 1, 1, 3, {}, {}, "stride of the lengths"},
      {"bf16_cache", 0, 0, 1, {}, {}, "keys are BF16 instead of FP8"},
      {"scale_exponent", 0, -4, 3, {}, {}, "scale of the scores, 2^(n - 1/2)"},
      {"world", 1, 1, 4, {1, 1, 1, 4}, {}, "ranks that share the blocks"},
      {"rank", 0, 0, 3, {}, {}, "this rank, modulo the world"},
      {"shard_from", 0, 0, 4, {0, 0, 288}, {}, "blocks above which ranks share"},
      Dimension::choice("content", {"ordinary", "coarse", "negative", "zero", "special"},
                        "what queries and keys look like"),
      lengths_dimension(),
      table_ids_dimension(),
      defect_dimension(11, {"lengths_fall", "rank_outside_world", "key_dim"}),
  };
  const std::vector<DType> cache{DType::kFloat8E4M3FN, DType::kFloat8E4M3FNUZ, DType::kBFloat16};
  stage.inputs = {
      {"index_q", {DType::kBFloat16}, {"rows", "heads", "head dim"}, InputStorage::kNested},
      {"index_cache", cache, {"blocks", "block_size", "head dim"}, InputStorage::kCache},
      {"block_table", {DType::kInt32}, {"rows", "width"}, InputStorage::kRows},
      {"seq_lens", {DType::kInt32}, {"rows"}, InputStorage::kStrided},
      {"score", {DType::kFloat32}, {"heads", "rows", "width"}, InputStorage::kNested}};
  stage.sizes = {{"heads", 1, limits::kHeads}, {"head dim", 16, 128, 16}};
  stage.scalars = selection_scalars();
  stage.scalars.insert(
      stage.scalars.end(),
      {ScalarSpec::integer("q_len", 1, limits::kQueryLength), ScalarSpec::finite("sm_scale"),
       ScalarSpec::integer("world", 1, limits::kRanks).or_none(),
       ScalarSpec::integer("rank", 0, limits::kRanks - 1).or_none(),
       ScalarSpec::integer("shard_from", 0, kMaxSelectableBlocks).or_none()});
  stage.build = build;
  stage.outputs = outputs;
  stage.reference = reference;
  stage.launch = launch;
  stage.has_kernels = [](const Contract& contract) {
    return contract.index_scores == IndexScores::kSelectable &&
           contract.empty_row == EmptyRow::kContext1;
  };
  stage.properties = {
      laws::permute({.part = "request",
                     .inputs = {{"index_q", 0, query_rows},
                                {"block_table", 0, query_rows},
                                {"seq_lens", 0, query_rows}},
                     .outputs = {{"score", 1, query_rows}},
                     .compared = scored}),
      laws::scale({.inputs = {{"sm_scale", 1, -100, 100}},
                   .outputs = {{"score"}},
                   .applies = scales_scores,
                   .compared = scored}),
      laws::ignores("poison_invariance", "blocks that are not scored are not looked up",
                    {{"block_table", unscored_entries}}),
      laws::untouched("unscored_kept", "what is not scored holds what it held", {{"score"}},
                      scored_of),
      laws::definition({outputs, define, work}),
  };
  return stage;
}

}  // namespace monoref
