// index_select: generator, reference and kernels side by side.
#include "reference/stages/index_select.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <set>

#include "device/launch/index_select.hpp"
#include "fuzz/inputs.hpp"
#include "fuzz/laws/ignores.hpp"
#include "fuzz/laws/permute.hpp"
#include "fuzz/stages/content.hpp"
#include "fuzz/stages/floats.hpp"
#include "fuzz/stages/step_rows.hpp"

namespace monoref {
namespace {

constexpr std::int64_t kBlock = 128;
constexpr std::int64_t kPagesPerBlock = 8;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Scores of one row, by the named distribution (bug cases S12 to S17).
std::vector<float> row_scores(std::string_view kind, std::int64_t blocks, CounterRandom& random) {
  std::vector<float> scores(static_cast<std::size_t>(blocks));
  for (std::size_t b = 0; b < scores.size(); ++b) {
    const float ordinary = draw_float(Floats::kOrdinary, random);
    if (kind == "plateau")
      scores[b] = random.once_in(6) ? ordinary : 0.0f;
    else if (kind == "levels")
      scores[b] = static_cast<float>(random.between(-1, 1));
    else if (kind == "zeros")
      scores[b] = random.once_in(2) ? -0.0f : 0.0f;
    else if (kind == "near_ties")
      scores[b] = std::bit_cast<float>(0x3F800000u + static_cast<std::uint32_t>(random.below(4)));
    else if (kind == "mostly_minus_inf")
      scores[b] = random.once_in(4) ? ordinary : -kInfinity;
    else if (kind == "infinite")
      scores[b] = random.once_in(2) ? kInfinity : ordinary;
    else if (kind == "nan")
      scores[b] = random.once_in(2) ? (random.once_in(2) ? kNan : -kNan) : ordinary;
    else if (kind == "any")
      scores[b] = draw_float(random.once_in(2) ? Floats::kWide : Floats::kSpecial, random);
    else if (kind == "equal")
      scores[b] = -1.5f;
    else
      scores[b] = ordinary;
  }
  if (kind == "best_last" && !scores.empty()) scores.back() = 1e20f;
  return scores;
}

/// Slots that no row may read: pinned blocks, and those behind the context.
float stale_score(std::int64_t block) {
  constexpr float kStale[] = {kNan, kInfinity, 3e38f, -kInfinity};
  return kStale[block % 4];
}

Tensor make_scores(const Params& params, const StepRows& steps, const BlockSelection& selection,
                   std::int64_t blocks, CounterRandom& random) {
  const std::int64_t heads = params["heads"];
  const std::int64_t stride = blocks + params["score_gap"];
  Tensor tensor(DType::kFloat32,
                Layout::strided({heads, steps.rows(), blocks}, {stride, heads * stride, 1}));
  tensor.fill_bytes(std::byte{0xC3});
  auto score = tensor.view<float, 3>();
  for (std::int64_t row = 0; row < steps.rows(); ++row)
    for (std::int64_t head = 0; head < heads; ++head) {
      const auto drawn = row_scores(params.word("scores"), blocks, random);
      const std::int64_t count = selection.blocks(std::max<std::int64_t>(steps.length(row), 1));
      for (std::int64_t b = 0; b < blocks; ++b) {
        const bool read = selection.selects(count) && b < count && !selection.is_init(b) &&
                          !selection.is_local(b, count);
        score(head, row, b) = read ? drawn[static_cast<std::size_t>(b)] : stale_score(b + row);
      }
    }
  return tensor;
}

void plant_defect(Case& item, const std::string& defect) {
  const auto set = [&](std::string_view name, std::int64_t value) {
    for (NamedScalar& scalar : item.scalars)
      if (scalar.name == name) scalar.value = value;
  };
  if (defect == "topk_0") set("topk", 0);
  if (defect == "page_stride_7") set("block_page_stride", 7);
  if (defect == "too_many_blocks") {
    const std::int64_t rows = item.input("seq_lens").dim(0);
    replace_input(
        item, "seq_lens",
        strided_vector(DType::kInt32,
                       std::vector<std::int64_t>(static_cast<std::size_t>(rows), 8192 * kBlock + 1),
                       1));
  }
}

/// What the selection sees of a case, before a defect: a case without rows has few of them.
std::string applicable_defect(const Params& params) {
  const std::string defect(params.word("defect"));
  return defect == "too_many_blocks" && params["requests"] == 0 ? "none" : defect;
}

Case build(const Params& params, const Contract&, std::uint64_t seed) {
  CounterRandom length_random(seed, "seq_lens");
  CounterRandom table_random(seed, "block_table");
  CounterRandom score_random(seed, "score");
  const BlockSelection selection{.block_size = kBlock,
                                 .topk = params["topk"],
                                 .init_blocks = params["init_blocks"],
                                 .local_blocks = params["local_blocks"]};
  const StepRows steps = drawn_step_rows(params, selection, length_random);
  const std::int64_t blocks = steps.most_blocks(selection);
  const std::int64_t width = blocks + params["spare_columns"];
  const std::int64_t stride = params["packed"] != 0 ? 16 : 8;
  const auto ids = make_block_ids(
      static_cast<TableIds>(params["table_ids"]),
      static_cast<std::int64_t>(steps.lengths.size()) * width,
      (std::numeric_limits<std::int32_t>::max() - kPagesPerBlock) / stride, table_random);
  Case item;
  item.scalars = {{"q_len", params["q_len"]},
                  {"block_page_stride", stride},
                  {"ranks", params["ranks"]},
                  {"out_gap", params["out_gap"]}};
  add_selection(item, selection);
  item.inputs = {
      {"score", make_scores(params, steps, selection, blocks, score_random)},
      {"block_table", padded_rows(DType::kInt32, steps.rows(), width, params["table_row_gap"],
                                  steps.row_tables(ids, width))},
      {"seq_lens", strided_vector(DType::kInt32, steps.row_lengths(), params["vector_step"])}};
  const std::string defect = applicable_defect(params);
  item.scalars.push_back({"defect", defect});
  plant_defect(item, defect);
  return item;
}

IndexSelectInput input_of(const Case& item) {
  return {item.input("score").view<float, 3>(),
          item.input("block_table").view<std::int32_t, 2>(),
          item.input("seq_lens").view<std::int32_t, 1>(),
          kPagesPerBlock,
          item.integer("block_page_stride"),
          selection_of(item),
          item.contract};
}

/// Outputs in the kernels' order: a row's heads follow each other.
Layout by_row_and_head(const std::array<std::int64_t, 3>& dims, std::int64_t gap) {
  const std::int64_t stride = dims[2] + gap;
  return Layout::strided({dims[0], dims[1], dims[2]}, {stride, dims[0] * stride, 1});
}

bool has_candidates(const Case& item) {
  return item.integer_or("ranks", 1) > 1;
}

std::vector<OutputSpec> outputs(const Case& item) {
  if (item.input("seq_lens").dim(0) % item.integer("q_len") != 0)
    refuse("index_select: seq_lens has {} rows, must be a multiple of q_len {}",
           item.input("seq_lens").dim(0), item.integer("q_len"));
  const IndexSelectShape shape = index_select_shape(input_of(item));
  const auto [heads, rows, topk] = shape.topk_idx;
  const std::int64_t gap = row_gap(item, "out_gap");
  std::vector<OutputSpec> specs{{"topk_idx",
                                 DType::kInt32,
                                 by_row_and_head(shape.topk_idx, gap),
                                 {"head", "row", "rank"},
                                 ""},
                                {"sparse_block_table",
                                 DType::kInt32,
                                 by_row_and_head(shape.sparse_block_table, 4 * gap),
                                 {"head", "row", "column"},
                                 ""},
                                {"sparse_context_lens",
                                 DType::kInt32,
                                 Layout::strided({heads, rows}, {1, heads}),
                                 {"head", "row"},
                                 ""}};
  if (has_candidates(item))
    specs.push_back({"candidates",
                     DType::kInt64,
                     Layout::dense({item.integer("ranks"), rows, heads, topk}),
                     {"rank", "row", "head", "place"},
                     ""});
  return specs;
}

/// A candidate as ranks exchange it: larger is better.
std::int64_t packed(const BlockCandidate& candidate, TopkTies ties) {
  const auto key =
      static_cast<std::int64_t>(static_cast<std::uint32_t>(candidate.key) ^ 0x80000000u);
  const std::int64_t id = ties == TopkTies::kHigherId ? candidate.block : 0xFFFF - candidate.block;
  return key * 0x10000 + id;
}

void write_candidates(const Case& item, const View<std::int64_t, 4>& out) {
  const IndexSelectInput input = input_of(item);
  for (std::int64_t rank = 0; rank < out.dim(0); ++rank)
    for (std::int64_t row = 0; row < out.dim(1); ++row)
      for (std::int64_t head = 0; head < out.dim(2); ++head) {
        const auto best = shard_candidates(input, head, row, {.world = out.dim(0), .rank = rank});
        for (std::int64_t place = 0; place < out.dim(3); ++place) {
          const auto at = static_cast<std::size_t>(place);
          out(rank, row, head, place) =
              at < best.size() ? packed(best[at], item.contract.topk_ties) : -1;
        }
      }
}

void reference(const Case& item, Outputs& out) {
  index_select(input_of(item),
               {out[0].tensor.view<std::int32_t, 3>(), out[1].tensor.view<std::int32_t, 3>(),
                out[2].tensor.view<std::int32_t, 2>()});
  if (has_candidates(item)) write_candidates(item, out[3].tensor.view<std::int64_t, 4>());
}

device::launch::Selection selection_arguments(const Case& item, const Launcher& launcher) {
  const Layout& score = item.input("score").layout();
  return {.seq_lens = launcher.address<const std::int32_t>("seq_lens"),
          .seq_lens_stride = item.input("seq_lens").layout().strides[0],
          .rows = score.dims[1],
          .heads = score.dims[0],
          .q_len = item.integer("q_len"),
          .topk = item.integer("topk"),
          .tables_of = 0,
          .tie = option(item.contract.topk_ties)};
}

device::launch::BlockScores scores_of(const Case& item, const Launcher& launcher) {
  const Layout& score = item.input("score").layout();
  return {.data = launcher.address<const float>("score"),
          .row_stride = score.strides[1],
          .head_stride = score.strides[0],
          .init_blocks = item.integer("init_blocks"),
          .local_blocks = item.integer("local_blocks")};
}

device::launch::SelectedPages pages_of(const Case& item, const Launcher& launcher) {
  const Layout& table = item.input("block_table").layout();
  const std::vector<OutputSpec> specs = outputs(item);
  const auto stride = [&](std::size_t spec, std::size_t axis) {
    return specs[spec].layout.strides[axis];
  };
  return {.block_table = launcher.address<const std::int32_t>("block_table"),
          .table_row_stride = table.strides[0],
          .width = table.dims[1],
          .topk_idx = launcher.address<std::int32_t>("out.topk_idx"),
          .topk_row_stride = stride(0, 1),
          .topk_head_stride = stride(0, 0),
          .page_table = launcher.address<std::int32_t>("out.sparse_block_table"),
          .page_row_stride = stride(1, 1),
          .page_head_stride = stride(1, 0),
          .context_lens = launcher.address<std::int32_t>("out.sparse_context_lens"),
          .context_row_stride = stride(2, 1),
          .context_head_stride = stride(2, 0),
          .page_stride = item.integer("block_page_stride")};
}

void launch(const Case& item, const Launcher& launcher) {
  const device::launch::Selection of = selection_arguments(item, launcher);
  const device::launch::SelectedPages pages = pages_of(item, launcher);
  if (!has_candidates(item))
    return launcher.enqueue(
        device::launch::IndexSelect{.of = of, .scores = scores_of(item, launcher), .pages = pages});
  auto* const candidates = launcher.address<std::int64_t>("out.candidates");
  const std::int64_t of_row = of.heads * of.topk;
  const std::int64_t of_rank = of.rows * of_row;
  const std::int64_t ranks = item.integer("ranks");
  for (std::int64_t rank = 0; rank < ranks; ++rank)
    launcher.enqueue(device::launch::IndexCandidates{.of = of,
                                                     .scores = scores_of(item, launcher),
                                                     .width = pages.width,
                                                     .candidates = candidates + rank * of_rank,
                                                     .candidate_row_stride = of_row,
                                                     .candidate_head_stride = of.topk,
                                                     .world = ranks,
                                                     .rank = rank});
  launcher.enqueue(device::launch::IndexMerge{.of = of,
                                              .candidates = candidates,
                                              .candidate_rank_stride = of_rank,
                                              .candidate_row_stride = of_row,
                                              .candidate_head_stride = of.topk,
                                              .world = ranks,
                                              .pages = pages});
}

std::optional<std::string> ids_are_valid(const Case& item, const Outputs& out, const Evaluate&) {
  const IndexSelectInput input = input_of(item);
  const auto ids = output(out, "topk_idx").view<std::int32_t, 3>();
  const auto contexts = output(out, "sparse_context_lens").view<std::int32_t, 2>();
  for (std::int64_t head = 0; head < ids.dim(0); ++head)
    for (std::int64_t row = 0; row < ids.dim(1); ++row) {
      const std::int64_t context = context_of(input.seq_lens(row), item.contract.empty_row);
      const std::int64_t blocks = input.selection.blocks(context);
      std::set<std::int64_t> seen;
      std::int64_t keys = 0;
      for (std::int64_t rank = 0; rank < ids.dim(2); ++rank) {
        const std::int64_t id = ids(head, row, rank);
        if (rank >= blocks) {
          if (id != -1) return fmt::format("row {} has id {} behind its last block", row, id);
          continue;
        }
        if (id < 0 || id >= blocks || !seen.insert(id).second)
          return fmt::format("row {} selects block {} of {}, or twice", row, id, blocks);
        keys += std::min(kBlock, context - id * kBlock);
      }
      if (contexts(head, row) != keys)
        return fmt::format("row {} has context {}, its blocks hold {} keys", row,
                           contexts(head, row), keys);
    }
  return std::nullopt;
}

std::int64_t query_rows(const Case& item) {
  return item.integer("q_len");
}

}  // namespace

Stage index_select_stage() {
  Stage stage;
  stage.name = "index_select";
  stage.summary = "the best blocks of each row, their page table and context";
  stage.source = "mono-decode section 5; upstream-semantics section 4.2";
  stage.contracts = {"mono", "mono,topk_ties=lower_id"};
  stage.dimensions = {
      {"requests", 1, 0, 4, {0, 1, 2}, {}, "requests of the step"},
      {"q_len", 1, 1, 4, {1, 2, 3, 4, 8}, {}, "query rows a request"},
      {"heads", 1, 1, 4, {1, 4}, {}, "index heads"},
      {"topk", 1, 1, 20, {1, 3, 5, 12, 16, 16, 16, 17, 31, 32, 63, 64}, {}, "blocks selected"},
      {"init_blocks", 0, 0, 3, {0, 1}, {}, "pinned leading blocks"},
      {"local_blocks", 0, 0, 3, {0, 1, 1}, {}, "pinned trailing blocks"},
      {"blocks",
       1,
       1,
       40,
       {1, 16, 17, 18, 65, 257, 289, 513, 4097, 8192},
       {},
       "blocks that the longest context may have"},
      {"short_of_capacity", 0, 0, 127, {0, 1, 112, 127}, {}, "keys missing in the last block"},
      {"spare_columns", 0, 0, 3, {}, {}, "table columns that no context needs"},
      {"table_row_gap", 0, 0, 4, {}, {}, "elements between rows of the block table"},
      {"score_gap", 0, 0, 4, {}, {}, "elements between rows of scores"},
      {"out_gap", 0, 0, 3, {}, {}, "elements between rows of the results"},
      {"vector_step", 1, 1, 3, {}, {}, "stride of the lengths"},
      {"packed", 0, 0, 1, {}, {}, "K and V share a block: page stride 16 instead of 8"},
      {"ranks", 1, 1, 8, {1, 1, 4}, {}, "ranks that share the blocks and exchange candidates"},
      Dimension::choice("scores",
                        {"ordinary", "plateau", "levels", "zeros", "near_ties", "mostly_minus_inf",
                         "infinite", "nan", "any", "equal", "best_last"},
                        "distribution of the scores"),
      lengths_dimension(),
      table_ids_dimension(),
      defect_dimension(11, {"topk_0", "page_stride_7", "too_many_blocks"}),
  };
  stage.inputs = {{"score", {DType::kFloat32}, {"heads", "rows", "blocks"}, InputStorage::kNested},
                  {"block_table", {DType::kInt32}, {"rows", "width"}, InputStorage::kRows},
                  {"seq_lens", {DType::kInt32}, {"rows"}, InputStorage::kStrided}};
  stage.sizes = {{"heads", 1, limits::kHeads}};
  stage.scalars = selection_scalars();
  stage.scalars.insert(
      stage.scalars.end(),
      {ScalarSpec::integer("q_len", 1, limits::kQueryLength),
       ScalarSpec::integer("block_page_stride", kPagesPerBlock, limits::kExtent),
       ScalarSpec::integer("ranks", 1, limits::kRanks).or_none(), ScalarSpec::row_gap("out_gap")});
  stage.build = build;
  stage.outputs = outputs;
  stage.reference = reference;
  stage.launch = launch;
  stage.has_kernels = [](const Contract& contract) {
    return contract.index_scores == IndexScores::kSelectable &&
           contract.empty_row == EmptyRow::kContext1 && contract.nan_score == NanScore::kLowest &&
           contract.zero_score == ZeroScore::kEqual;
  };
  stage.properties = {
      {"index_validity", "ids are in range and distinct, and the context counts their keys",
       ids_are_valid},
      laws::unchanged(
          "shard_invariance", "the selection is the same however many ranks share the blocks",
          {laws::with_scalar("ranks", std::int64_t{1}), laws::with_scalar("ranks", std::int64_t{4}),
           laws::with_scalar("ranks", std::int64_t{7})},
          {.outputs = {"topk_idx", "sparse_block_table", "sparse_context_lens"}}),
      laws::permute({.part = "request",
                     .inputs = {{"seq_lens", 0, query_rows},
                                {"block_table", 0, query_rows},
                                {"score", 1, query_rows}},
                     .outputs = {{"topk_idx", 1, query_rows},
                                 {"sparse_block_table", 1, query_rows},
                                 {"sparse_context_lens", 1, query_rows}}}),
  };
  return stage;
}

}  // namespace monoref
