#include "golden/compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace monoref {
namespace {

bool same_scalar(const Scalar& left, const Scalar& right) {
  const auto* a = std::get_if<double>(&left);
  const auto* b = std::get_if<double>(&right);
  if (a != nullptr && b != nullptr)
    return std::bit_cast<std::uint64_t>(*a) == std::bit_cast<std::uint64_t>(*b);
  return left == right;
}

std::string scalars_difference(const std::vector<NamedScalar>& left,
                               const std::vector<NamedScalar>& right) {
  if (left.size() != right.size())
    return fmt::format("{} and {} scalars", left.size(), right.size());
  for (std::size_t i = 0; i < left.size(); ++i)
    if (left[i].name != right[i].name || !same_scalar(left[i].value, right[i].value))
      return fmt::format("scalar {} ('{}' and '{}')", i, left[i].name, right[i].name);
  return {};
}

std::string tensors_difference(std::string_view kind, const std::vector<NamedTensor>& left,
                               const std::vector<NamedTensor>& right) {
  if (left.size() != right.size())
    return fmt::format("{} and {} {}s", left.size(), right.size(), kind);
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (left[i].name != right[i].name)
      return fmt::format("{} {} is '{}' and '{}'", kind, i, left[i].name, right[i].name);
    const std::string difference = tensor_difference(left[i].tensor, right[i].tensor);
    if (!difference.empty()) return fmt::format("{} '{}': {}", kind, left[i].name, difference);
  }
  return {};
}

std::string mask_difference(const ExpectedOutput& left, const ExpectedOutput& right) {
  if (left.specified.has_value() != right.specified.has_value()) return "one has no mask";
  return left.specified ? tensor_difference(*left.specified, *right.specified) : std::string();
}

std::string expected_difference(const std::vector<ExpectedOutput>& left,
                                const std::vector<ExpectedOutput>& right) {
  if (left.size() != right.size())
    return fmt::format("{} and {} expected outputs", left.size(), right.size());
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (left[i].name != right[i].name)
      return fmt::format("output {} is '{}' and '{}'", i, left[i].name, right[i].name);
    std::string difference = tensor_difference(left[i].tensor, right[i].tensor);
    if (difference.empty()) difference = mask_difference(left[i], right[i]);
    if (!difference.empty()) return fmt::format("output '{}': {}", left[i].name, difference);
  }
  return {};
}

std::string recorded_difference(const RecordedCase& left, const RecordedCase& right) {
  if (left.title != right.title) return "the title";
  std::string difference = scalars_difference(left.scalars, right.scalars);
  if (difference.empty()) difference = tensors_difference("input", left.inputs, right.inputs);
  if (difference.empty()) difference = tensors_difference("output", left.outputs, right.outputs);
  return difference;
}

}  // namespace

std::string tensor_difference(const Tensor& left, const Tensor& right) {
  if (left.type() != right.type())
    return fmt::format("types {} and {}", dtype_name(left.type()), dtype_name(right.type()));
  if (!(left.layout() == right.layout())) return "the layouts";
  const std::vector<std::byte> a = left.image();
  const std::vector<std::byte> b = right.image();
  const auto at = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
  return at == a.end() ? std::string() : fmt::format("stored byte {}", at - a.begin());
}

std::string case_difference(const Case& left, const Case& right) {
  if (left.stage != right.stage) return "the stage";
  if (left.title != right.title) return "the title";
  if (!(left.contract == right.contract)) return "the contract";
  if (left.seed != right.seed) return "the seed";
  if (left.generator_version != right.generator_version) return "the generator's version";
  if (left.line != right.line) return "the line";
  if (left.provenance.origin != right.provenance.origin) return "the origin";
  if (left.provenance.source != right.provenance.source) return "the source";
  std::string difference = scalars_difference(left.scalars, right.scalars);
  if (difference.empty()) difference = tensors_difference("input", left.inputs, right.inputs);
  if (difference.empty()) difference = expected_difference(left.expected, right.expected);
  return difference;
}

std::string recording_difference(const Recording& left, const Recording& right) {
  if (left.stage != right.stage) return "the stage";
  if (left.source != right.source) return "the source";
  if (left.device != right.device) return "the device";
  if (left.torch != right.torch || left.triton != right.triton) return "the versions";
  if (left.cases.size() != right.cases.size())
    return fmt::format("{} and {} cases", left.cases.size(), right.cases.size());
  for (std::size_t i = 0; i < left.cases.size(); ++i) {
    const std::string difference = recorded_difference(left.cases[i], right.cases[i]);
    if (!difference.empty()) return fmt::format("case '{}': {}", left.cases[i].title, difference);
  }
  return {};
}

}  // namespace monoref
