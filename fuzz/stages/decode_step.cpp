// decode_step: the runner. Steps of several sparse layers through one set of buffers, from what the
// dense layers leave to the final norm.
#include <algorithm>
#include <cstring>
#include <limits>

#include "fuzz/runner.hpp"
#include "fuzz/stages/content.hpp"
#include "fuzz/stages/floats.hpp"
#include "fuzz/stages/layer_content.hpp"
#include "fuzz/stages/layer_links.hpp"
#include "reference/model/decode_step.hpp"
#include "reference/model/step_admission.hpp"
#include "reference/rules/stage_checks.hpp"

namespace monoref {
namespace {

constexpr std::int64_t kBlock = 128;
constexpr std::int64_t kMaxRows = 16;
constexpr std::int64_t kMaxSteps = 64;
/// Sparse layers; a mask of 64 bits has one for each state between layers.
constexpr std::int64_t kMaxLayers = 60;

std::string step_name(std::int64_t step) {
  return fmt::format("s{}.", step);
}
std::string layer_name(std::int64_t layer) {
  return fmt::format("l{}.", layer);
}

/// A step of its own size: requests, query length and contexts rise and fall from one to the next.
LayerStep draw_step(const Params& params, std::int64_t index, std::uint64_t seed) {
  CounterRandom random(seed, step_name(index) + "seq_lens");
  const std::int64_t q_len = random.between(1, params["q_len"]);
  const std::int64_t most = kMaxRows / q_len;
  const std::int64_t requests = random.between(1, std::min(params["requests"], most));
  LayerStep step{
      q_len,
      {},
      make_lengths(static_cast<Lengths>(params["lengths"]), requests,
                   params["blocks"] * kBlock - params["short_of_capacity"], q_len, random)};
  for (std::int64_t i = 0; i < requests; ++i) step.requests.push_back(static_cast<std::int32_t>(i));
  const std::int64_t padding = random.between(0, params["padding"]);
  step.requests.resize(static_cast<std::size_t>(std::min(requests + padding, most)), -1);
  step.lengths.resize(step.requests.size(), 0);
  return step;
}

std::vector<std::int32_t> longest_contexts(const std::vector<LayerStep>& steps) {
  std::vector<std::int32_t> longest;
  for (const LayerStep& step : steps)
    for (std::size_t i = 0; i < step.lengths.size(); ++i) {
      if (i == longest.size()) longest.push_back(0);
      longest[i] = std::max(longest[i], step.lengths[i]);
    }
  return longest;
}

Tensor zeros_like(const Tensor& tensor) {
  return {tensor.type(), tensor.layout()};
}

/// What the dense layers left. Without any, the embedding is the first MoE layer's input and the
/// residual is zero.
void add_dense_prefix(Case& item, LayerContent& content, const LayerStep& step,
                      const ReachedBlocks& blocks, const std::string& prefix, bool dense) {
  content.add_step(prefix, step, blocks, prefix + "hidden", prefix + "residual");
  if (dense)
    content.add_activations(prefix + "embedding", step.rows());
  else
    replace_input(item, prefix + "residual", zeros_like(item.input(prefix + "residual")));
}

void plant_defect(Case& item, std::string_view defect) {
  if (defect == "positions_int32")
    replace_input(item, "s0.position", Tensor(DType::kInt32, item.input("s0.position").layout()));
  if (defect == "seq_lens_int64")
    replace_input(item, "s0.seq_lens", Tensor(DType::kInt64, item.input("s0.seq_lens").layout()));
  if (defect == "slot_count")
    replace_input(item, "s0.slot_mapping", Tensor(DType::kInt64, Layout::dense({0})));
  if (defect == "table_stride") {
    const auto& dims = item.input("s0.block_table").dims();
    replace_input(item, "s0.block_table",
                  Tensor(DType::kInt32, Layout::strided(dims, {dims[1] + 1, 1})));
  }
  for (NamedScalar& scalar : item.scalars) {
    if (scalar.name == "s0.rows" && defect == "seventeen_tokens") scalar.value = kMaxRows + 1;
    if (scalar.name == "s0.q_len" && defect == "query_length") scalar.value = kMaxRows + 1;
  }
}

Case build(const Params& params, const Contract& contract, std::uint64_t seed) {
  const LayerShape shape = layer_shape(params);
  CounterRandom table_random(seed, "block_table");
  std::vector<LayerStep> steps;
  for (std::int64_t s = 0; s < params["steps"]; ++s) steps.push_back(draw_step(params, s, seed));
  const std::int64_t width = params["blocks"];
  const ReachedBlocks blocks(longest_contexts(steps), width, table_random);
  const std::string defect(params.word("defect"));
  const bool dense = params["dense_layers"] != 0;
  Case item;
  item.contract = contract;
  item.scalars = {{"steps", params["steps"]},
                  {"layers", params["layers"]},
                  {"dense_layers", std::int64_t{dense}},
                  {"aux_mask", params["aux_mask"]},
                  {"first_tag", params.word("tags") == "wrap" ? std::int64_t{INT32_MAX} - 2 : 1},
                  {"defect", defect}};
  add_layer_shape(item, shape);
  LayerContent content(item, shape, params, seed);
  std::int64_t most_rows = 0;
  for (std::size_t s = 0; s < steps.size(); ++s) {
    const std::string name = step_name(static_cast<std::int64_t>(s));
    item.scalars.push_back({name + "q_len", steps[s].q_len});
    item.scalars.push_back({name + "rows", steps[s].rows()});
    add_dense_prefix(item, content, steps[s], blocks, name, dense);
    most_rows = std::max(most_rows, steps[s].rows());
  }
  for (std::int64_t l = 0; l < params["layers"]; ++l) content.add_layer(layer_name(l), blocks);
  content.add_gamma("final_gamma", shape.hidden);
  content.add_common(width * kBlock, most_rows, width,
                     static_cast<std::int32_t>(item.integer("first_tag")));
  item.inputs.push_back({"step", Tensor::of<std::int32_t>(DType::kInt32, {1}, {41})});
  plant_defect(item, defect);
  return item;
}

ChainLink token_rows_link(const Case& item, const std::string& step) {
  return {step + "token_rows",
          "token_rows",
          {{"block_table", step + "block_table"}, {"seq_lens", step + "seq_lens"}},
          {{"block_table", step + "row_table"}, {"seq_lens", step + "row_lens"}},
          {{"q", item.integer(step + "q_len")}, {"n", item.integer(step + "rows")}},
          true};
}

/// The links of one step.
class StepLinks {
 public:
  StepLinks(const Case& item, std::int64_t step, const Planted& planted)
      : item_(item),
        planted_(planted),
        shape_(layer_shape_of(item)),
        step_(step),
        prefix_(step_name(step)),
        rows_(item.integer(prefix_ + "rows")) {}

  void append_to(std::vector<ChainLink>& links) const {
    append_start(links);
    for (std::int64_t i = 0; i < item_.integer("layers"); ++i) append_layer(links, i);
    append_end(links);
  }

 private:
  Layout rows_of_rank() const { return Layout::dense({rows_, shape_.hidden}); }
  /// One rank's rows of [ranks, rows, hidden].
  ChainRead rows_of(const char* name, const std::string& tensor, std::int64_t rank) const {
    return {name, tensor, rows_of_rank(), rank * rows_ * shape_.hidden};
  }
  /// A link that every rank has. `each(rank)` makes it, and its name goes behind the rank's.
  template <class Each>
  void append_on_ranks(std::vector<ChainLink>& links, Each each) const {
    for (std::int64_t rank = 0; rank < shape_.ranks; ++rank) {
      ChainLink link = each(rank);
      link.name = fmt::format("{}r{}.{}", prefix_, rank, link.name);
      link.rank = rank;
      links.push_back(std::move(link));
    }
  }

  void append_start(std::vector<ChainLink>& links) const {
    const std::string hidden = prefix_ + "hidden";
    const bool dense = item_.integer("dense_layers") != 0;
    links.push_back(token_rows_link(item_, prefix_));
    // Before layer 0 there is no residual yet.
    append_auxiliary(links, 0, dense ? prefix_ + "embedding" : hidden, "");
    if (dense) append_auxiliary(links, 1, hidden, prefix_ + "residual");
    if (planted_(MONOREF_FAULT_NAME(runner_start_not_copied, "D04",
                                    "a step starts from what the one before left")) &&
        step_ > 0)
      return;
    append_on_ranks(links, [&](std::int64_t rank) -> ChainLink {
      return {"start",
              "auxiliary_state",
              {rows_of("hidden", hidden, rank)},
              {{"state", "ars0", rank, shape_.ranks, true}},
              {}};
    });
  }

  void append_layer(std::vector<ChainLink>& links, std::int64_t i) const {
    const std::string from = std::to_string(i % 2), to = std::to_string((i + 1) % 2);
    LayerLinks layer;
    layer.shape = shape_;
    layer.kv_layout = item_.contract.kv_layout;
    layer.rows = rows_;
    layer.q_len = item_.integer(prefix_ + "q_len");
    layer.table_width = item_.input(prefix_ + "block_table").dim(1);
    layer.tag = tag(i);
    layer.link_prefix = prefix_ + layer_name(i);
    layer.layer_prefix = layer_name(i);
    layer.step_prefix = prefix_;
    layer.ar_in =
        "ars" + (planted_(MONOREF_FAULT_NAME(runner_parity_swapped, "own",
                                             "a layer reads the buffer that it writes")) &&
                         i > 0
                     ? to
                     : from);
    layer.residual_in = i == 0 ? prefix_ + "residual" : "h_mids" + from;
    if (planted_(MONOREF_FAULT_NAME(runner_residual_of_previous_layer, "own",
                                    "a layer's residual is one layer old")) &&
        i > 0)
      layer.residual_in = i == 1 ? prefix_ + "residual" : "h_mids" + to;
    layer.ar_out = "ars" + to;
    layer.h_mid_out = "h_mids" + to;
    layer.append_to(links);
    const std::string& hidden =
        planted_(MONOREF_FAULT_NAME(runner_aux_before_layer, "own",
                                    "auxiliary states of what a layer read"))
            ? layer.ar_in
            : layer.ar_out;
    append_auxiliary(links, item_.integer("dense_layers") + i + 1, hidden, layer.h_mid_out);
  }

  void append_end(std::vector<ChainLink>& links) const {
    const std::int64_t layers = item_.integer("layers");
    const std::string last = std::to_string(layers % 2);
    const std::string read = planted_(MONOREF_FAULT_NAME(runner_final_norm_of_other_buffer, "own",
                                                         "the final norm reads the other parity"))
                                 ? std::to_string((layers + 1) % 2)
                                 : last;
    append_on_ranks(links, [&](std::int64_t rank) -> ChainLink {
      return {"final_norm",
              "final_norm",
              {rows_of("ar", "ars" + read, rank),
               rows_of("res", "h_mids" + last, rank),
               {"gamma", "final_gamma"}},
              {{"out", prefix_ + "out", rank, shape_.ranks, true}},
              {{"eps", shape_.eps}}};
    });
    links.push_back({prefix_ + "step_counter",
                     "step_counter",
                     {{"counter", "step"}},
                     {{"counter", "step"}},
                     {}});
  }

  /// The state after `index` layers, if the model asks for it.
  void append_auxiliary(std::vector<ChainLink>& links, std::int64_t index,
                        const std::string& hidden, const std::string& residual) const {
    if ((item_.integer("aux_mask") >> index & 1) == 0) return;
    ChainLink link{fmt::format("{}auxiliary_state{}", prefix_, index),
                   "auxiliary_state",
                   {rows_of("hidden", hidden, 0)},
                   {{"state", fmt::format("{}aux{}", prefix_, index)}},
                   {}};
    if (!residual.empty()) link.reads.push_back(rows_of("residual", residual, 0));
    link.rank = 0;
    links.push_back(std::move(link));
  }

  /// Reductions count on through layers and steps.
  std::int32_t tag(std::int64_t layer) const {
    const std::int64_t before =
        planted_(MONOREF_FAULT_NAME(runner_tags_per_step, "D03",
                                    "the reductions of every step use the same tags"))
            ? 0
            : step_;
    const std::int64_t reductions = 2 * (before * item_.integer("layers") + layer);
    return static_cast<std::int32_t>(
        static_cast<std::uint32_t>(item_.integer("first_tag") + reductions));
  }

  const Case& item_;
  const Planted& planted_;
  LayerShape shape_;
  std::int64_t step_;
  std::string prefix_;
  std::int64_t rows_;
};

std::vector<ChainLink> make_links(const Case& item, const Planted& planted) {
  std::vector<ChainLink> links;
  for (std::int64_t s = 0; s < item.integer("steps"); ++s)
    StepLinks(item, s, planted).append_to(links);
  return links;
}

/// What the runner looks at before a step.
StepRequest step_request(const Case& item, std::int64_t step) {
  const std::string prefix = step_name(step);
  const Tensor& table = item.input(prefix + "block_table");
  const Tensor& lens = item.input(prefix + "seq_lens");
  const Tensor& slots = item.input(prefix + "slot_mapping");
  StepRequest request;
  request.sparse_layers = item.integer("layers");
  request.tokens = item.integer(prefix + "rows");
  request.q_len = item.integer(prefix + "q_len");
  request.positions_type = item.input(prefix + "position").type();
  request.block_table_type = table.type();
  request.block_table_rows = table.dim(0);
  request.block_table_width = table.dim(1);
  request.block_table_row_stride = table.layout().strides[0];
  request.seq_lens_type = lens.type();
  request.seq_lens_rows = lens.dim(0);
  request.slot_mapping_type = slots.type();
  request.slot_mapping_entries = slots.dim(0);
  return request;
}

/// Refuses a step that the runner would not be given, before any link is made.
void check_admission(const Case& item) {
  for (std::int64_t step = 0; step < item.integer("steps"); ++step)
    if (const auto refusal = admit_step(step_request(item, step), ModelShape{}))
      refuse("{}", refusal->message);
}

/// Single layers by their references, for the reference of the runner. Caches and flags stay from
/// one to the next.
class LayerByLayer {
 public:
  explicit LayerByLayer(const Case& item) : item_(item) {}

  void run(std::int64_t layer, std::int64_t step, const SparseLayerRows& rows) {
    const LayerShape shape = layer_shape_of(item_);
    LayerLinks links;
    links.shape = shape;
    links.kv_layout = item_.contract.kv_layout;
    links.rows = rows.ar.dim(0);
    links.step_prefix = step_name(step);
    links.layer_prefix = layer_name(layer);
    links.q_len = item_.integer(links.step_prefix + "q_len");
    links.table_width = item_.input(links.step_prefix + "block_table").dim(1);
    links.tag = static_cast<std::int32_t>(
        static_cast<std::uint32_t>(item_.integer("first_tag") + 2 * calls_++));
    set_on_every_rank("ar", rows.ar, shape);
    set_on_every_rank("residual", rows.res, shape);
    Stage stage;
    stage.name = "sparse_layer";
    stage.chain = [&](const Case&, const Planted&) {
      std::vector<ChainLink> chain{token_rows_link(item_, links.step_prefix)};
      links.append_to(chain);
      return chain;
    };
    as_chain(stage);
    const auto specs = stage.outputs(item_);
    Outputs out = run_reference(stage, item_, specs);
    take_rank_0(output(out, links.ar_out), rows.ar_out);
    take_rank_0(output(out, links.h_mid_out), rows.h_mid);
    for (std::size_t i = 0; i < specs.size(); ++i)
      if (!specs[i].starts_as.empty())
        replace_input(item_, specs[i].starts_as, std::move(out[i].tensor));
  }

 private:
  void set_on_every_rank(const char* name, const ConstHiddenRows& rows, const LayerShape& shape) {
    Tensor whole(DType::kBFloat16, Layout::dense({shape.ranks, rows.dim(0), shape.hidden}));
    const auto to = whole.view<std::uint16_t, 3>();
    for (std::int64_t rank = 0; rank < shape.ranks; ++rank)
      for (std::int64_t row = 0; row < rows.dim(0); ++row)
        for (std::int64_t i = 0; i < shape.hidden; ++i) to(rank, row, i) = rows(row, i);
    if (item_.find_input(name) == nullptr) item_.inputs.push_back({name, Tensor()});
    replace_input(item_, name, std::move(whole));
  }

  static void take_rank_0(const Tensor& from, const HiddenRows& to) {
    const auto rows = from.view<std::uint16_t, 3>();
    for (std::int64_t row = 0; row < to.dim(0); ++row)
      for (std::int64_t i = 0; i < to.dim(1); ++i) to(row, i) = rows(0, row, i);
  }

  Case item_;
  std::int64_t calls_ = 0;
};

/// Rank 0's rows of an input [ranks, rows, hidden].
ConstHiddenRows rank_0_of(const Tensor& tensor) {
  return {reinterpret_cast<const std::uint16_t*>(tensor.base()),
          {tensor.dim(1), tensor.dim(2)},
          {tensor.dim(2), 1}};
}

Tensor copy_of(const ConstHiddenRows& rows) {
  Tensor copy(DType::kBFloat16, Layout::dense({rows.dim(0), rows.dim(1)}));
  const auto to = copy.view<std::uint16_t, 2>();
  for (std::int64_t row = 0; row < rows.dim(0); ++row)
    for (std::int64_t i = 0; i < rows.dim(1); ++i) to(row, i) = rows(row, i);
  return copy;
}

/// The runner of the reference, with the case's dense results and layers.
DecodeRunner reference_runner(const Case& item, LayerByLayer& layers, const std::int64_t& step) {
  ModelShape shape;
  shape.dense_layers = item.integer("dense_layers");
  shape.layers = shape.dense_layers + item.integer("layers");
  shape.hidden = layer_shape_of(item).hidden;
  shape.rms_eps = layer_shape_of(item).eps;
  StepModel model;
  model.shape = shape;
  model.dense = [&item, &step](std::int64_t, const ConstHiddenRows&, const ConstHiddenRows*) {
    return DenseLayerRows{copy_of(rank_0_of(item.input(step_name(step) + "hidden"))),
                          copy_of(rank_0_of(item.input(step_name(step) + "residual")))};
  };
  model.sparse = [&layers, &step, dense = shape.dense_layers](std::int64_t layer, std::int32_t,
                                                              const SparseLayerRows& rows) {
    layers.run(layer - dense, step, rows);
  };
  const auto gamma = item.input("final_gamma").view<std::uint16_t, 1>();
  for (std::int64_t i = 0; i < gamma.dim(0); ++i) model.final_gamma.push_back(gamma(i));
  for (std::int64_t index = 0; index <= shape.layers; ++index)
    if ((item.integer("aux_mask") >> index & 1) != 0) model.auxiliary_layers.push_back(index);
  DecodeRunner runner(std::move(model), BuildRequest::of(shape), {});
  runner.set_step(item.input("step").view<std::int32_t, 1>()(0));
  return runner;
}

bool same_rows(const Tensor& rows, const Tensor& out) {
  return std::memcmp(rows.base(), out.base(),
                     static_cast<std::size_t>(rows.layout().elements()) * rows.element_size()) == 0;
}

/// Whether the ranks of an input [ranks, rows, hidden] have the same bits.
bool ranks_are_equal(const Tensor& tensor) {
  const std::vector<std::byte> image = tensor.image();
  const auto part =
      static_cast<std::ptrdiff_t>(image.size()) / std::max<std::ptrdiff_t>(tensor.dim(0), 1);
  return std::equal(image.begin() + part, image.end(), image.begin());
}

/// Whether the case starts as the model does: the same on every rank, and without a residual where
/// no dense layer made one.
bool starts_as_the_model(const Case& item) {
  for (std::int64_t step = 0; step < item.integer("steps"); ++step) {
    const Tensor& residual = item.input(step_name(step) + "residual");
    const std::vector<std::byte> image = residual.image();
    const bool is_zero = std::all_of(image.begin(), image.end(),
                                     [](std::byte byte) { return byte == std::byte{0}; });
    if (item.integer("dense_layers") == 0 && !is_zero) return false;
    if (!ranks_are_equal(residual) || !ranks_are_equal(item.input(step_name(step) + "hidden")))
      return false;
  }
  return true;
}

/// The runner as the reference has it, which knows nothing of links: the same states, step by step.
std::optional<std::string> runner_agrees(const Case& item, const Outputs& out, const Evaluate&) {
  if (!starts_as_the_model(item)) return std::nullopt;
  LayerByLayer layers(item);
  std::int64_t step = 0;
  DecodeRunner runner = reference_runner(item, layers, step);
  for (; step < item.integer("steps"); ++step) {
    const std::string prefix = step_name(step);
    const bool dense = item.integer("dense_layers") != 0;
    const StepOutput expected = runner.forward(
        step_request(item, step), rank_0_of(item.input(prefix + (dense ? "embedding" : "hidden"))));
    if (!same_rows(expected.hidden, output(out, prefix + "out")))
      return fmt::format("the hidden states of step {} differ from the runner's", step);
    std::size_t next = 0;
    for (std::int64_t index = 0; next < expected.auxiliary.size(); ++index) {
      if ((item.integer("aux_mask") >> index & 1) == 0) continue;
      if (!same_rows(expected.auxiliary[next++],
                     output(out, fmt::format("{}aux{}", prefix, index))))
        return fmt::format("auxiliary state {} of step {} differs from the runner's", index, step);
    }
  }
  if (runner.step() != output(out, "step").view<std::int32_t, 1>()(0))
    return fmt::format("the counter is not {}", runner.step());
  return std::nullopt;
}

/// Buffers that are reused give what buffers of everything's own give.
std::optional<std::string> buffers_do_not_matter(const Case& item, const Outputs& out,
                                                 const Evaluate&) {
  const Stage open = with_own_buffers(find_stage("decode_step"));
  Outputs fresh;
  for (const OutputSpec& spec : open.outputs(item)) {
    Tensor tensor(spec.type, spec.layout);
    if (!spec.starts_as.empty()) tensor = item.input(spec.starts_as);
    fresh.push_back({spec.name, std::move(tensor)});
  }
  open.reference(item, fresh);
  for (std::int64_t s = 0; s < item.integer("steps"); ++s) {
    const std::string name = step_name(s) + "out";
    if (output(fresh, name).image() != output(out, name).image())
      return fmt::format("{} differs from a run in which nothing is overwritten", name);
  }
  return std::nullopt;
}

}  // namespace

Stage decode_step_stage() {
  Stage stage;
  stage.name = "decode_step";
  stage.summary = "steps of several layers through one set of buffers, up to the final norm";
  stage.source = "mono-runner; mono-decode sections 2 and 10";
  stage.contracts = {"mono", "mono,kv_layout=dense,routing_key=plain_lower_id,gate_weights=f32"};
  stage.dimensions = {
      {"steps", 1, 1, 2, {1, 1, 3}, {}, "steps through the same buffers", 8},
      {"layers", 1, 1, 2, {1, 3}, {}, "sparse layers", 57},
      {"dense_layers", 0, 0, 1, {}, {}, "layers before them, whose results are inputs"},
      {"aux_mask", 0, 0, 15, {0, 1, 15}, {}, "auxiliary states asked for, a bit an index"},
      {"requests", 1, 1, 2, {1, 1, 4, 8}, {}, "most requests of a step; at most 16 rows", 16},
      {"q_len", 1, 1, 1, {1, 1, 2, 4}, {}, "largest query length", 8},
      {"padding", 0, 0, 1, {0, 3}, {}, "most requests of padding behind them", 15},
      {"blocks", 1, 1, 2, {1, 3}, {}, "blocks that the longest context may have"},
      {"short_of_capacity", 0, 0, 127, {0, 1, 112, 127}, {}, "keys missing in the last block"},
      lengths_dimension(),
      Dimension::choice("tags", {"one", "wrap"}, "where the tags of the reductions begin"),
      {"defect",
       0,
       0,
       0,
       {0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6},
       {"none", "positions_int32", "seq_lens_int64", "slot_count", "table_stride",
        "seventeen_tokens", "query_length"},
       "what the runner is not given"},
  };
  const auto shared = layer_dimensions();
  stage.dimensions.insert(stage.dimensions.end(), shared.begin(), shared.end());
  list_step_inputs(stage, "s#.");
  for (const char* name : {"s#.hidden", "s#.residual", "s#.embedding"})
    stage.inputs.push_back({name,
                            {DType::kBFloat16},
                            {"ranks", "s#.rows", "hidden"},
                            InputStorage::kDense,
                            name == std::string_view("s#.embedding")});
  list_layer_inputs(stage, "l#.");
  stage.inputs.push_back({"final_gamma", {DType::kBFloat16}, {"hidden"}});
  stage.inputs.push_back({"step", {DType::kInt32}, {"counters"}});
  stage.scalars.insert(
      stage.scalars.end(),
      {ScalarSpec::integer("steps", 1, kMaxSteps), ScalarSpec::integer("layers", 1, kMaxLayers),
       ScalarSpec::flag("dense_layers"),
       ScalarSpec::integer("aux_mask", 0, std::numeric_limits<std::int64_t>::max()),
       ScalarSpec::integer("first_tag", kInt32Min, kInt32Max)});
  stage.build = build;
  stage.chain = make_links;
  stage.ranks = layer_ranks;
  as_chain(stage);
  stage.outputs = [chain = stage.outputs](const Case& item) {
    check_admission(item);
    return chain(item);
  };
  stage.properties = {
      {"fresh_buffers", "a step finds nothing of the one before", buffers_do_not_matter},
      {"runner", "the runner of the reference finds the same", runner_agrees}};
  stage.golden_cases = 1;  // of the smallest layers: weights are large
  stage.golden_bytes = 1'700'000;
  return stage;
}

}  // namespace monoref
