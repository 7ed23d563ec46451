#include "reference/rules/expert_weights.hpp"

#include <algorithm>
#include <map>

#include "reference/formats/convert.hpp"
#include "reference/rules/stage_checks.hpp"
#include "reference/rules/stored_elements.hpp"
#include "reference/rules/weight_layouts.hpp"

namespace monoref {
namespace {

constexpr auto kBlock = static_cast<std::int64_t>(kMxBlock);
constexpr std::int64_t kRowGroup = 32;     ///< of the scale layout
constexpr std::int64_t kScaleColumns = 8;  ///< likewise

std::int64_t scale_columns(std::int64_t k) {
  return (k / kBlock + kScaleColumns - 1) / kScaleColumns * kScaleColumns;
}

std::int64_t code_bytes(MxElement element, std::int64_t values) {
  return static_cast<std::int64_t>(mx_code_bytes(element, static_cast<std::size_t>(values)));
}

void check_bytes(std::string_view argument, const Tensor& tensor,
                 const std::vector<std::int64_t>& dims) {
  if (tensor.type() != DType::kUInt8)
    refuse("{} is {}, must be uint8", argument, dtype_name(tensor.type()));
  if (tensor.dims() != dims)
    refuse("{} has dims [{}], must have [{}]", argument, fmt::join(tensor.dims(), ", "),
           fmt::join(dims, ", "));
  const std::vector<std::int64_t> dense = Layout::dense(dims).strides;
  if (tensor.layout().strides != dense)
    refuse("{} has strides [{}], must be dense, [{}]", argument,
           fmt::join(tensor.layout().strides, ", "), fmt::join(dense, ", "));
}

void check_shared(const std::string& argument, const ExpertWeights& weights, std::int64_t rows,
                  std::int64_t k) {
  if ((weights.shared_weight == nullptr) != (weights.shared_scale == nullptr))
    refuse("{}: the shared expert has '{}' alone, must have weights and scales or neither",
           argument, weights.shared_weight == nullptr ? "scales" : "weights");
  if (weights.shared_weight == nullptr) return;
  check_bytes(argument + " shared weight", *weights.shared_weight, {rows, k});
  check_bytes(argument + " shared scale", *weights.shared_scale, {rows, scale_columns(k)});
}

/// Refuses unless an expert's elements lie in one run. `argument` names topk_ids with the place and
/// the id.
void check_stored(const std::string& argument, std::string_view what, const Layout& layout,
                  std::int64_t first, std::int64_t count) {
  if (!holds_run(layout, first, count))
    refuse("{}, whose {} are elements {} to {}, must be stored in one run: there are {}", argument,
           what, first, first + count - 1, stored_text(layout));
}

/// Refuses a valid id without storage. Rows come in whole groups of the scale layout, so that an
/// expert's scales are one run.
void check_stored(const std::string& argument, const ExpertWeights& weights, std::int64_t id) {
  const bool separate = id == weights.n_routed && weights.shared_weight != nullptr;
  const Tensor& weight = separate ? *weights.shared_weight : weights.weight;
  const Tensor& scale = separate ? *weights.shared_scale : weights.scale;
  const std::int64_t place = separate ? 0 : id;
  const std::int64_t codes = weights.weight.dim(1) * weight.dims().back();
  const std::int64_t scales = weights.weight.dim(1) * scale.dim(1);
  check_stored(argument, "weights", weight.layout(), place * codes, codes);
  check_stored(argument, "scales", scale.layout(), place * scales, scales);
}

}  // namespace

void check_expert_weights(std::string_view stage, std::string_view name,
                          const ExpertWeights& weights, std::int64_t k) {
  const std::string argument = fmt::format("{}: {}", stage, name);
  if (weights.n_routed < 1 || weights.n_routed > kExpertMaxRouted)
    refuse("{}: n_routed is {}, must be 1 to {}", stage, weights.n_routed, kExpertMaxRouted);
  if (weights.weight.rank() != 3)
    refuse("{} has rank {}, must be 3", argument, weights.weight.rank());
  const std::int64_t experts = weights.weight.dim(0);
  const std::int64_t rows = weights.weight.dim(1);
  const bool separate = weights.shared_weight != nullptr;
  if (experts != weights.n_routed && (separate || experts != weights.n_routed + 1))
    refuse("{} has {} experts, must be n_routed, {}{}", argument, experts, weights.n_routed,
           separate ? ", beside a separate shared one" : ", or one more");
  if (rows < 1 || rows % kRowGroup != 0)
    refuse("{} has {} rows an expert, must be a multiple of {}", argument, rows, kRowGroup);
  check_bytes(argument, weights.weight, {experts, rows, code_bytes(weights.element, k)});
  check_bytes(argument + " scale", weights.scale, {experts * rows, scale_columns(k)});
  check_shared(argument, weights, rows, k);
}

void check_expert_ids(std::string_view stage, const ExpertWeights& weights,
                      View<const std::int32_t, 2> topk_ids, const Contract& contract) {
  if (topk_ids.dim(1) < 1 || topk_ids.dim(1) > kExpertMaxSlots)
    refuse("{}: topk_ids has {} slots, must have 1 to {}", stage, topk_ids.dim(1), kExpertMaxSlots);
  for (std::int64_t row = 0; row < topk_ids.dim(0); ++row)
    for (std::int64_t slot = 0; slot < topk_ids.dim(1); ++slot) {
      const std::int32_t id = topk_ids(row, slot);
      if (!weights.is_expert(id)) {
        if (contract.out_of_range_slot == OutOfRangeSlot::kDrop) continue;
        refuse("{}: topk_ids of row {}, slot {} is {}, must be 0 to {}", stage, row, slot, id,
               weights.n_routed - (weights.has_shared() ? 0 : 1));
      }
      for (std::int64_t before = 0; before < slot; ++before)
        if (topk_ids(row, before) == id)
          refuse("{}: topk_ids of row {} has {} in slots {} and {}, ids must be distinct", stage,
                 row, id, before, slot);
      check_stored(fmt::format("{}: topk_ids of row {}, slot {} is {}", stage, row, slot, id),
                   weights, id);
    }
}

ExpertMatrix expert_matrix(const ExpertWeights& weights, std::int32_t id) {
  if (id == weights.n_routed && weights.shared_weight != nullptr)
    return {MxElement::kFp8,
            weights.shared_weight->dim(1),
            weights.shared_scale->dim(1),
            0,
            weights.shared_weight->view<std::uint8_t, 2>().data(),
            weights.shared_scale->view<std::uint8_t, 2>().data()};
  const auto codes = weights.weight.view<std::uint8_t, 3>();
  const std::int64_t k = codes.dim(2) * (weights.element == MxElement::kFp8 ? 1 : 2);
  return {weights.element,
          k,
          weights.scale.dim(1),
          id * codes.dim(1),
          codes.data() + id * codes.stride(0),
          weights.scale.view<std::uint8_t, 2>().data()};
}

void read_weights(const ExpertMatrix& matrix, std::int64_t row, std::int64_t first_k, E8M0Zero zero,
                  std::span<float> values) {
  const FloatFormat& format = mx_element_format(matrix.element);
  const std::int64_t row_bytes = code_bytes(matrix.element, matrix.k);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::int64_t k = first_k + static_cast<std::int64_t>(i);
    const std::int64_t column = matrix.element == MxElement::kFp8 ? k : k / 2;
    const std::uint8_t byte = matrix.codes[shuffled_weight_offset(row, column, row_bytes)];
    const std::uint32_t code = matrix.element == MxElement::kFp8 ? byte
                               : k % 2 == 0                      ? even_fp4(byte)
                                                                 : odd_fp4(byte);
    const std::uint8_t scale = matrix.scales[shuffled_scale_offset(
        matrix.first_scale_row + row, k / kBlock, matrix.scale_columns)];
    values[i] = canonical(decode_table(format)[code] * decode_e8m0(scale, zero));
  }
}

float mx_activation(std::uint8_t code, std::uint8_t scale, E8M0Zero zero) {
  return canonical(decode_fp8(kE4M3FN, code) * decode_e8m0(scale, zero));
}

std::vector<RoutedExpert> routed_experts(const ExpertWeights& weights,
                                         View<const std::int32_t, 2> topk_ids) {
  std::map<std::int32_t, std::vector<RoutedExpert::Pair>> pairs;
  for (std::int64_t row = 0; row < topk_ids.dim(0); ++row)
    for (std::int64_t slot = 0; slot < topk_ids.dim(1); ++slot)
      if (weights.is_expert(topk_ids(row, slot))) pairs[topk_ids(row, slot)].push_back({row, slot});
  std::vector<RoutedExpert> experts;
  for (auto& [id, own] : pairs) experts.push_back({id, std::move(own)});
  return experts;
}

}  // namespace monoref
