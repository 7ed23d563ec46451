#include "fuzz/inputs.hpp"

#include <algorithm>
#include <utility>

#include "reference/stage_checks.hpp"

namespace monoref {
namespace {

void check_known(const Stage& stage, const Case& item) {
  for (const NamedTensor& input : item.inputs) {
    std::vector<std::string_view> names;
    for (const InputSpec& spec : stage.inputs) names.push_back(spec.name);
    if (std::find(names.begin(), names.end(), input.name) == names.end())
      refuse("{}: the case has an input '{}', must have only {}", stage.name, input.name,
             fmt::join(names, ", "));
  }
}

void check_type(const std::string& argument, const InputSpec& spec, const Tensor& tensor) {
  std::vector<std::string_view> names;
  for (const DType type : spec.types) names.push_back(dtype_name(type));
  if (std::find(spec.types.begin(), spec.types.end(), tensor.type()) == spec.types.end())
    refuse("{} is {}, must be {}", argument, dtype_name(tensor.type()), fmt::join(names, " or "));
  if (tensor.rank() != spec.rank)
    refuse("{} has rank {}, must have {}", argument, tensor.rank(), spec.rank);
  for (std::size_t axis = 0; axis < tensor.rank(); ++axis)
    if (tensor.dim(axis) > kInt32Max)
      refuse("{} has {} in dimension {}, the limit is {}", argument, tensor.dim(axis), axis,
             kInt32Max);
}

/// Strides count only along axes with more than one element, and of a tensor that has elements.
void check_rows(const std::string& argument, const Layout& layout) {
  if (layout.elements() == 0) return;
  std::int64_t least = 1;
  for (std::size_t axis = layout.dims.size(); axis-- > 0;) {
    const std::int64_t stride = layout.strides[axis];
    const bool innermost = axis + 1 == layout.dims.size();
    if (layout.dims[axis] > 1 && (innermost ? stride != 1 : stride < least))
      refuse("{} has stride {} in dimension {}, must have {}{}", argument, stride, axis,
             innermost ? "" : "at least ", least);
    least = layout.dims[axis] > 1 ? stride * layout.dims[axis] : least * layout.dims[axis];
  }
}

void check_storage(const std::string& argument, const InputSpec& spec, const Layout& layout) {
  if (spec.storage != InputStorage::kSparse && layout.extents.size() > 1)
    refuse("{} is stored in {} runs, must be in one", argument, layout.extents.size());
  if (spec.storage == InputStorage::kRows) return check_rows(argument, layout);
  const std::vector<std::int64_t> dense = Layout::dense(layout.dims).strides;
  if (layout.strides != dense)
    refuse("{} has strides [{}], must be dense, [{}]", argument, fmt::join(layout.strides, ", "),
           fmt::join(dense, ", "));
}

}  // namespace

void check_inputs(const Stage& stage, const Case& item) {
  check_known(stage, item);
  for (const InputSpec& spec : stage.inputs) {
    const std::string name(spec.name);
    if (spec.optional && item.find_input(name) == nullptr) continue;
    const std::string argument = fmt::format("{}: {}", stage.name, name);
    const Tensor& tensor = item.input(name);
    check_type(argument, spec, tensor);
    check_storage(argument, spec, tensor.layout());
  }
}

Stage with_checked_inputs(Stage stage) {
  if (stage.inputs.empty()) return stage;
  Stage bare;
  bare.name = stage.name;
  bare.inputs = stage.inputs;
  stage.outputs = [bare = std::move(bare), inner = std::move(stage.outputs)](const Case& item) {
    check_inputs(bare, item);
    return inner(item);
  };
  return stage;
}

std::int64_t ranged_parameter(const Case& item, const std::string& key, std::int64_t low,
                              std::int64_t high) {
  const std::int64_t value = item.integer(key);
  if (value < low || value > high)
    refuse("{}: {} is {}, must be {} to {}", item.stage, key, value, low, high);
  return value;
}

std::int32_t int32_parameter(const Case& item, const std::string& key) {
  return static_cast<std::int32_t>(ranged_parameter(item, key, kInt32Min, kInt32Max));
}

bool flag_parameter(const Case& item, const std::string& key) {
  const std::int64_t value = item.integer(key);
  if (value != 0 && value != 1) refuse("{}: {} is {}, must be 0 or 1", item.stage, key, value);
  return value == 1;
}

std::int64_t row_gap(const Case& item, const std::string& key) {
  const std::int64_t gap = item.integer_or(key, 0);
  if (gap < 0 || gap > kMaxRowGap)
    refuse("{}: {} is {}, must be 0 to {}", item.stage, key, gap, kMaxRowGap);
  return gap;
}

}  // namespace monoref
