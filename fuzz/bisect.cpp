#include "fuzz/bisect.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "fuzz/chain.hpp"
#include "fuzz/compare.hpp"
#include "fuzz/runner.hpp"

namespace monoref {
namespace {

constexpr std::int64_t kShownElements = 8;

/// A stage as it was run, its case, and all that the reference computes on the way.
struct Run {
  Stage stage;
  const Case& item;
  std::vector<OutputSpec> specs;
  Outputs outputs;

  Run(const Stage& of, const Case& the_case)
      : stage(of.chain ? with_own_buffers(of) : of),
        item(the_case),
        specs(stage.outputs(item)),
        outputs(run_reference(stage, item, specs)) {}
};

/// The row, token or request that a difference lies in; 0 where its output has none of them.
std::int64_t row_of(const Difference& difference) {
  for (const auto& [axis, value] : difference.index)
    if (axis == "row" || axis == "token" || axis == "request") return value;
  return 0;
}

/// The first elements of a tensor at a leading index, which is left out where it has no such row.
std::string row_text(const Tensor& tensor, std::int64_t row) {
  const Layout& layout = tensor.layout();
  std::string text =
      fmt::format("{} [{}]", dtype_name(tensor.type()), fmt::join(layout.dims, ", "));
  if (layout.elements() == 0) return text;
  const std::int64_t leading = row < layout.dims[0] ? row : 0;
  std::int64_t at = leading * layout.strides[0];
  std::string values;
  const bool is_vector = layout.dims.size() == 1;
  const std::int64_t count = is_vector ? 1 : std::min(layout.dims.back(), kShownElements);
  for (std::int64_t i = 0; i < count; ++i) {
    const bool is_stored =
        std::any_of(layout.extents.begin(), layout.extents.end(), [&](const Extent& extent) {
          return at >= extent.offset && at < extent.offset + extent.count;
        });
    values += (i == 0 ? "" : ", ") + (is_stored ? element_text(tensor, at) : "not stored");
    at += layout.strides.back();
  }
  return fmt::format("{}, at {}: {}{}", text, leading, values,
                     !is_vector && layout.dims.back() > count ? ", .." : "");
}

std::string scalar_text(const NamedScalar& scalar) {
  return std::visit([&](const auto& value) { return fmt::format("{} = {}", scalar.name, value); },
                    scalar.value);
}

const Tensor& tensor_of(const Run& run, const std::string& name) {
  for (const NamedTensor& known : run.outputs)
    if (known.name == name) return known.tensor;
  return run.item.input(name);
}

std::string inputs_text(const Run& run, std::int64_t row) {
  std::string text;
  for (const NamedScalar& scalar : run.item.scalars)
    text += fmt::format("\n    {}", scalar_text(scalar));
  for (const NamedTensor& input : run.item.inputs)
    text += fmt::format("\n    {} {}", input.name, row_text(input.tensor, row));
  return text;
}

std::string inputs_text(const Run& run, const ChainLink& link, std::int64_t row) {
  std::string text;
  for (const NamedScalar& scalar : link.scalars)
    text += fmt::format("\n    {}", scalar_text(scalar));
  for (const ChainRead& read : link.reads) {
    const Tensor& whole = tensor_of(run, read.tensor);
    const Tensor seen = Tensor::alias(whole, read.layout.value_or(whole.layout()), read.offset);
    text += fmt::format(
        "\n    {} {}",
        read.name == read.tensor ? read.name : fmt::format("{} ({})", read.name, read.tensor),
        row_text(seen, row));
  }
  return text;
}

std::string difference_text(const Run& run, const Difference& difference,
                            const std::string& between) {
  const std::int64_t row = row_of(difference);
  if (!run.stage.chain)
    return fmt::format("bisect: stage {} is the first that differs ({})\n  {}\n  from{}",
                       run.stage.name, between, difference.text(), inputs_text(run, row));
  const auto links = links_of(run.stage, run.item);
  const ChainLink& link = writer_of(links, difference.output);
  return fmt::format(
      "bisect: stage {} is the first that differs ({}), as link {} of {}\n  {}\n  from{}",
      link.stage, between, link.name, run.stage.name, difference.text(),
      inputs_text(run, link, row));
}

/// The choices of a contract may not fit the inputs of a case that was made for another.
Run run_under_other_contract(const Stage& stage, const Case& item) {
  try {
    return Run(stage, item);
  } catch (const Refusal& refusal) {
    refuse("bisect: contract {} cannot take the case: {}", item.contract.text(), refusal.what());
  }
}

}  // namespace

std::string bisection_text(const Stage& stage, const Case& item, const CaseResult& result) {
  const RunResult* run = result.decisive();
  if (run == nullptr || !is_failure(run->verdict)) return {};
  if (!run->first_difference)
    return fmt::format("bisect: stage {}: {} ({})", stage.name, run->message, run->runner);
  return difference_text(Run(stage, item), *run->first_difference, run->runner);
}

std::string contract_bisection_text(const Stage& stage, const Case& item, const Contract& other) {
  Case under_other = item;
  under_other.contract = other;
  const Run first(stage, item);
  const Run second = run_under_other_contract(stage, under_other);
  const std::string between =
      fmt::format("contract {} against {}", item.contract.text(), other.text());
  RunResult result{.runner = "reference"};
  for (const OutputSpec& spec : first.specs) {
    const Tensor* const expected[] = {&output(first.outputs, spec.name)};
    const Tensor* const got[] = {&output(second.outputs, spec.name)};
    const Tensor* const everywhere[] = {nullptr};
    compare_outputs(std::span(&spec, 1), expected, everywhere, got, false, result);
    if (result.first_difference) return difference_text(first, *result.first_difference, between);
  }
  return fmt::format("bisect: no output differs ({})", between);
}

}  // namespace monoref
