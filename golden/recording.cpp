#include "golden/recording.hpp"

#include <algorithm>
#include <array>

#include "golden/load.hpp"
#include "golden/tensor_data.hpp"
#include "reference/core/excerpt.hpp"

namespace monoref {
namespace {

const Tensor* find_tensor(const std::vector<NamedTensor>& list, std::string_view key) {
  const auto found = std::find_if(list.begin(), list.end(),
                                  [&](const NamedTensor& item) { return item.name == key; });
  return found == list.end() ? nullptr : &found->tensor;
}

/// Rows of nothing cost the file nothing, but those who go over them time.
constexpr std::int64_t kMostEmptyRows = std::int64_t{1} << 16;

std::string parameter(const RecordedCase& item, std::string_view key) {
  return item.place(fmt::format("parameter {}", key));
}

template <class T>
const T& scalar_as(const RecordedCase& item, std::string_view key, std::string_view kind) {
  const Scalar* found = item.find_scalar(key);
  if (found == nullptr) refuse("{} is missing, must be {}", parameter(item, key), kind);
  const T* value = std::get_if<T>(found);
  if (value == nullptr)
    std::visit(
        [&](const auto& other) {
          refuse("{} is {}, must be {}", parameter(item, key), other, kind);
        },
        *found);
  return *value;
}

const Tensor& present(const RecordedCase& item, const Tensor* found, std::string_view side,
                      std::string_view key) {
  if (found == nullptr) {
    const std::string what = item.place(fmt::format("{} {}", side, key));
    refuse("{} is missing, must be there", what);
  }
  return *found;
}

std::string dims_text(const std::vector<std::int64_t>& dims) {
  std::vector<std::string> words;
  for (const std::int64_t dim : dims)
    words.push_back(dim == kAnyExtent ? "any" : fmt::format("{}", dim));
  return fmt::format("[{}]", fmt::join(words, ", "));
}

bool has_dims(const Tensor& tensor, const std::vector<std::int64_t>& dims) {
  return std::equal(
      tensor.dims().begin(), tensor.dims().end(), dims.begin(), dims.end(),
      [](std::int64_t has, std::int64_t must) { return must == kAnyExtent || has == must; });
}

void check_shape(const std::string& what, const Tensor& tensor, const RecordedShape& shape) {
  if (std::find(shape.types.begin(), shape.types.end(), tensor.type()) == shape.types.end()) {
    std::vector<std::string_view> names;
    for (const DType type : shape.types) names.push_back(dtype_name(type));
    refuse("{} is of {}, must be of {}", what, dtype_name(tensor.type()), fmt::join(names, " or "));
  }
  if (!has_dims(tensor, shape.dims))
    refuse("{} has dims {}, must have {}", what, dims_text(tensor.dims()), dims_text(shape.dims));
}

template <class T>
void check_indices(const std::string& what, const Tensor& tensor, std::int64_t low,
                   std::int64_t high) {
  const auto* values = reinterpret_cast<const T*>(tensor.base());  // recorded tensors are dense
  for (std::int64_t i = 0; i < tensor.layout().elements(); ++i)
    if (values[i] < low || values[i] > high)
      refuse("{}[{}] is {}, must be {} to {}", what, i, values[i], low, high);
}

Scalar scalar_from(const TreeAttribute& attribute, const FilePlace& place) {
  if (const auto* number = std::get_if<std::int64_t>(&attribute.value)) return *number;
  if (const auto* truth = std::get_if<bool>(&attribute.value)) return std::int64_t{*truth};
  if (const auto* real = std::get_if<double>(&attribute.value)) return *real;
  if (const auto* text = std::get_if<std::string>(&attribute.value)) return *text;
  content_error(place,
                "attribute '{}' must be an integer of 64 bits with sign, a real number, a "
                "boolean or a text",
                attribute.name);
}

Tensor tensor_from(const TreeDataset& dataset, const FilePlace& place) {
  AttributeReader attributes(dataset.attributes, place);
  const DType type = dtype_from_attribute(attributes.text("dtype"), dataset.type, place);
  attributes.finish();
  Tensor tensor = dense_tensor(type, dataset, place);
  for (const std::int64_t dim : tensor.dims())
    if (tensor.empty() && dim > kMostEmptyRows)
      content_error(place, "has no elements and a dimension of {}, the limit is {}", dim,
                    kMostEmptyRows);
  return tensor;
}

std::vector<NamedTensor> tensors_from(const TreeGroup& group, const std::string& path) {
  if (!group.attributes.empty())
    content_error({path, ""}, "has an attribute '{}'; it must have none",
                  group.attributes.front().name);
  if (!group.groups.empty())
    content_error({path, ""}, "has a group '{}' in it; it must hold datasets only",
                  group.groups.front().name);
  std::vector<NamedTensor> tensors;
  for (const TreeDataset& dataset : group.datasets)
    tensors.push_back({dataset.name, tensor_from(dataset, {path, dataset.name})});
  return tensors;
}

RecordedCase case_from(const TreeGroup& group, const std::string& kind) {
  const FilePlace place{group.name, ""};
  RecordedCase item;
  item.title = group.name;
  item.kind = kind;
  for (const TreeAttribute& attribute : group.attributes)
    item.scalars.push_back({attribute.name, scalar_from(attribute, place)});
  if (!group.datasets.empty())
    content_error({group.name, group.datasets.front().name}, "lies outside 'in' and 'out'");
  if (group.groups.size() != 2 || group.groups[0].name != "in" || group.groups[1].name != "out")
    content_error(place, "must hold the groups 'in' and 'out', and no others");
  item.inputs = tensors_from(group.groups[0], group.name + "/in");
  item.outputs = tensors_from(group.groups[1], group.name + "/out");
  return item;
}

}  // namespace

const Scalar* RecordedCase::find_scalar(std::string_view key) const {
  for (const NamedScalar& scalar : scalars)
    if (scalar.name == key) return &scalar.value;
  return nullptr;
}

std::int64_t RecordedCase::integer(std::string_view key) const {
  return scalar_as<std::int64_t>(*this, key, "an integer");
}

double RecordedCase::real(std::string_view key) const {
  return scalar_as<double>(*this, key, "a real number");
}

const std::string& RecordedCase::word(std::string_view key) const {
  return scalar_as<std::string>(*this, key, "a word");
}

const Tensor* RecordedCase::find_input(std::string_view key) const {
  return find_tensor(inputs, key);
}

const Tensor* RecordedCase::find_output(std::string_view key) const {
  return find_tensor(outputs, key);
}

const Tensor& RecordedCase::input(std::string_view key) const {
  return present(*this, find_input(key), "input", key);
}

const Tensor& RecordedCase::output(std::string_view key) const {
  return present(*this, find_output(key), "output", key);
}

std::string RecordedCase::place(std::string_view what) const {
  return fmt::format("recording {}, {}: {}", kind, title, what);
}

std::int64_t RecordedCase::integer(std::string_view key, std::int64_t low,
                                   std::int64_t high) const {
  const std::int64_t value = integer(key);
  if (value < low || value > high)
    refuse("{} is {}, must be {} to {}", parameter(*this, key), value, low, high);
  return value;
}

double RecordedCase::real(std::string_view key, double low, double high) const {
  const double value = real(key);
  if (!(value >= low && value <= high))
    refuse("{} is {}, must be {} to {}", parameter(*this, key), value, low, high);
  return value;
}

const Tensor& RecordedCase::input(std::string_view key, const RecordedShape& shape) const {
  const Tensor& tensor = input(key);
  check_shape(place(fmt::format("input {}", key)), tensor, shape);
  return tensor;
}

const Tensor& RecordedCase::output(std::string_view key, const RecordedShape& shape) const {
  const Tensor& tensor = output(key);
  check_shape(place(fmt::format("output {}", key)), tensor, shape);
  return tensor;
}

const Tensor& RecordedCase::indices(std::string_view key, const RecordedShape& shape,
                                    std::int64_t low, std::int64_t high) const {
  const Tensor& tensor = input(key, shape);
  const std::string what = place(fmt::format("input {}", key));
  if (tensor.type() == DType::kInt64)
    check_indices<std::int64_t>(what, tensor, low, high);
  else
    check_indices<std::int32_t>(what, tensor, low, high);
  return tensor;
}

Recording recording_from_tree(const TreeGroup& root) {
  AttributeReader attributes(root.attributes, {});
  Recording recording;
  if (attributes.text("format") != kRecordingFormat)
    content_error({}, "format is '{}', must be {}", excerpt(attributes.text("format")),
                  kRecordingFormat);
  const std::int64_t count = attributes.integer("cases");
  recording.stage = attributes.text("stage");
  recording.source = attributes.text("source");
  recording.device = attributes.text("device");
  recording.torch = attributes.text("torch");
  recording.triton = attributes.text("triton");
  attributes.finish();
  if (!root.datasets.empty()) content_error({"", root.datasets.front().name}, "lies in no case");
  if (count != static_cast<std::int64_t>(root.groups.size()))
    content_error({}, "attribute 'cases' is {}, must be {}, the number of groups", count,
                  root.groups.size());
  for (const TreeGroup& group : root.groups)
    recording.cases.push_back(case_from(group, recording.stage));
  return recording;
}

Recording read_recording(const std::filesystem::path& path, const ReadLimits& limits) {
  const std::array formats{kRecordingFormat};
  const TreeGroup tree = load_tree(path, formats, limits);
  try {
    return recording_from_tree(tree);
  } catch (const ContentError& error) {
    throw FileError(path.string(), error.what());
  }
}

}  // namespace monoref
