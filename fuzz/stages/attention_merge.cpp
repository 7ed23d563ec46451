// attention_merge: generator, reference and kernel side by side.
#include "reference/stages/attention_merge.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "device/launch/attention_merge.hpp"
#include "fuzz/inputs.hpp"
#include "fuzz/laws/ignores.hpp"
#include "fuzz/laws/permute.hpp"
#include "fuzz/stages/content.hpp"
#include "fuzz/stages/floats.hpp"

namespace monoref {
namespace {

constexpr float kMasked = -3.4e38f;

/// What one partition says about one head.
struct Weight {
  float m;
  float l;
};

Weight draw_weight(std::string_view kind, CounterRandom& random) {
  const float sum = std::ldexp(static_cast<float>(random.between(128, 255)),
                               static_cast<int>(random.between(-7, 1)));
  const float near = static_cast<float>(random.between(-4096, 4096)) / 512.0f;
  if (kind == "masked_between" && random.once_in(2)) return {kMasked, 256.0f};
  if (kind == "all_masked") return {kMasked, 256.0f};
  if (kind == "equal") return {1.5f, 32.0f};
  if (kind == "far_apart") return {40.0f * near, sum};
  if (kind == "special" && random.once_in(8))
    return {draw_float(Floats::kSpecial, random), draw_float(Floats::kSpecial, random)};
  return {near, sum};
}

Tensor drawn(DType type, std::vector<std::int64_t> dims,
             const std::function<std::uint32_t()>& draw) {
  return drawn_tensor(type, Layout::dense(std::move(dims)), draw);
}

Case build(const Params& params, const Contract& contract, std::uint64_t seed) {
  CounterRandom weight_random(seed, "weights");
  CounterRandom o_random(seed, "o");
  const std::int64_t rows = params["rows"];
  const std::int64_t parts = params["partitions"];
  const std::int64_t heads = params["heads"];
  const std::int64_t dim = 8 * params["dim_units"];
  const std::string_view kind = params.word("weights");
  const auto content = static_cast<Floats>(params["o_content"]);
  std::vector<float> m;
  std::vector<float> l;
  for (std::int64_t i = 0; i < rows * parts * heads; ++i) {
    const Weight weight = draw_weight(kind, weight_random);
    m.push_back(weight.m);
    l.push_back(weight.l);
  }
  // A masked partition has an o of zeros; the rest is content.
  std::size_t element = 0;
  const auto draw_o = [&]() -> std::uint32_t {
    const float weight = m[element++ / static_cast<std::size_t>(dim)];
    const std::uint16_t code = draw_bf16(content, o_random);
    return weight == kMasked ? 0u : code;
  };
  Case item;
  // Where m is a logarithm of sums, nobody reads l.
  const bool reads_l = contract.merge_weights == MergeWeights::kMaxAndSum;
  const std::string defect(reads_l ? params.word("defect") : "none");
  const std::int64_t l_heads = heads + (defect == "heads_of_l" ? 1 : 0);
  l.resize(static_cast<std::size_t>(rows * parts * l_heads), 1.0f);
  item.scalars = {{"out_row_gap", 8 * params["out_row_gap"]}, {"defect", defect}};
  item.inputs = {{"o", drawn(DType::kBFloat16, {rows, parts, heads, dim}, draw_o)},
                 {"m", Tensor::of(DType::kFloat32, {rows, parts, heads}, m)},
                 {"l", Tensor::of(DType::kFloat32, {rows, parts, l_heads}, l)}};
  return item;
}

AttentionMergeInput input_of(const Case& item) {
  return {item.input("o").view<std::uint16_t, 4>(), item.input("m").view<float, 3>(),
          item.input("l").view<float, 3>(), item.contract};
}

std::vector<OutputSpec> outputs(const Case& item) {
  const auto [rows, heads, dim] = attention_merge_shape(input_of(item));
  const std::int64_t row = heads * dim + row_gap(item, "out_row_gap");
  return {{"out",
           DType::kBFloat16,
           Layout::strided({rows, heads, dim}, {row, dim, 1}),
           {"row", "head", "dim"},
           ""}};
}

void reference(const Case& item, Outputs& out) {
  attention_merge(input_of(item), {out[0].tensor.view<std::uint16_t, 3>()});
}

void launch(const Case& item, const Launcher& launcher) {
  const std::vector<std::int64_t>& dims = item.input("o").dims();
  launcher.enqueue(device::launch::AttentionMerge{
      .o = launcher.address<const std::uint16_t>("o"),
      .m = launcher.address<const float>("m"),
      .l = launcher.address<const float>("l"),
      .out = launcher.address<std::uint16_t>("out.out"),
      .out_row_stride = dims[2] * dims[3] + row_gap(item, "out_row_gap"),
      .rows = dims[0],
      .heads = dims[2],
      .head_dim = dims[3],
      .partitions = dims[1],
      .accumulate = option(item.contract.merge_sum)});
}

/// A tensor [rows, partitions, ...] with one more partition of a constant element at the end.
Tensor with_one_more(const Tensor& tensor, std::uint32_t bits) {
  std::vector<std::int64_t> dims = tensor.dims();
  std::int64_t inner = 1;
  for (std::size_t axis = 2; axis < dims.size(); ++axis) inner *= dims[axis];
  const std::int64_t old_run = dims[1] * inner;
  ++dims[1];
  std::int64_t at = 0;
  return drawn(tensor.type(), dims, [&]() -> std::uint32_t {
    const std::int64_t row = at / (old_run + inner);
    const std::int64_t in_row = at++ % (old_run + inner);
    if (in_row >= old_run) return bits;
    const std::int64_t from = row * old_run + in_row;
    if (tensor.element_size() == 2)
      return reinterpret_cast<const std::uint16_t*>(tensor.base())[from];
    return reinterpret_cast<const std::uint32_t*>(tensor.base())[from];
  });
}

/// One more partition, of masked keys, behind the others.
std::optional<Case> with_masked_partition(const Case& item) {
  Case longer = item;
  replace_input(longer, "o", with_one_more(item.input("o"), 0));
  replace_input(longer, "m", with_one_more(item.input("m"), std::bit_cast<std::uint32_t>(kMasked)));
  replace_input(longer, "l", with_one_more(item.input("l"), std::bit_cast<std::uint32_t>(256.0f)));
  return longer;
}

/// Heads of which another partition has a key, so that the mask is far below. Zeros are left out
/// under a fused sum: it may underflow to -0, which adding the masked partition's +0 turns into +0.
laws::OutputRegion heads_with_keys(const Case& item, const Outputs& out) {
  const auto m = item.input("m").view<float, 3>();
  const auto merged = output(out, "out").view<std::uint16_t, 3>();
  const bool fused = item.contract.merge_sum == MergeSum::kFused;
  return [=](std::string_view, laws::Index at) {
    float largest = -std::numeric_limits<float>::infinity();
    for (std::int64_t part = 0; part < m.dim(1); ++part)
      largest = std::max(largest, m(at[0], part, at[1]));
    return largest > -1e30f && !(fused && (merged(at[0], at[1], at[2]) & 0x7FFF) == 0);
  };
}

}  // namespace

Stage attention_merge_stage() {
  Stage stage;
  stage.name = "attention_merge";
  stage.summary = "partial attention of each row and head merged into one";
  stage.source = "mono-decode section 6";
  stage.contracts = {"mono", "mono,merge_sum=fused"};
  stage.dimensions = {
      {"rows", 1, 0, 4, {0, 1, 16}, {}, "query rows"},
      {"partitions", 1, 1, 8, {1, 2, 8, 8}, {}, "partial results of a row"},
      {"heads", 1, 1, 8, {1, 16}, {}, "query heads"},
      {"dim_units", 1, 1, 4, {1, 16}, {}, "elements of a head, in eights"},
      {"out_row_gap", 0, 0, 2, {}, {}, "elements between merged rows, in eights"},
      Dimension::choice("weights",
                        {"near", "far_apart", "equal", "masked_between", "all_masked", "special"},
                        "maxima and sums"),
      floats_dimension("o_content", "partial results"),
      defect_dimension(11, {"heads_of_l"}),
  };
  stage.inputs = {{"o", {DType::kBFloat16}, {"rows", "partitions", "heads", "head dim"}},
                  {"m", {DType::kFloat32}, {"rows", "partitions", "heads"}},
                  {"l", {DType::kFloat32}, {"rows", "partitions", "heads"}}};
  stage.sizes = {{"head dim", 8, limits::kHeadDim, 8}};
  stage.scalars = {ScalarSpec::integer("out_row_gap", 0, limits::kRowGap, 8).or_none()};
  stage.build = build;
  stage.outputs = outputs;
  stage.reference = reference;
  stage.launch = launch;
  stage.has_kernels = [](const Contract& contract) {
    return contract.merge_weights == MergeWeights::kMaxAndSum &&
           contract.empty_partial == EmptyPartial::kComputed;
  };
  stage.properties = {
      laws::permute("row", {"o", "m", "l"}),
      laws::unchanged("split_invariance", "a partition of masked keys changes nothing",
                      {with_masked_partition}, {.compared = heads_with_keys}),
  };
  return stage;
}

}  // namespace monoref
