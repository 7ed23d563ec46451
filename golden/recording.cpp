#include "golden/recording.hpp"

#include <algorithm>
#include <array>

#include "golden/load.hpp"
#include "golden/tensor_data.hpp"

namespace monoref {
namespace {

const Tensor* find_tensor(const std::vector<NamedTensor>& list, std::string_view key) {
  const auto found = std::find_if(list.begin(), list.end(),
                                  [&](const NamedTensor& item) { return item.name == key; });
  return found == list.end() ? nullptr : &found->tensor;
}

template <class T>
const T& scalar_as(const RecordedCase& item, std::string_view key, std::string_view kind) {
  const Scalar* found = item.find_scalar(key);
  if (found == nullptr) refuse("recording: {} has no parameter '{}'", item.title, key);
  const T* value = std::get_if<T>(found);
  if (value == nullptr) refuse("recording: {}: parameter '{}' is not {}", item.title, key, kind);
  return *value;
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
  return dense_tensor(type, dataset, place);
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

RecordedCase case_from(const TreeGroup& group) {
  const FilePlace place{group.name, ""};
  RecordedCase item;
  item.title = group.name;
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
  const Tensor* found = find_input(key);
  if (found == nullptr) refuse("recording: {} has no input '{}'", title, key);
  return *found;
}

const Tensor& RecordedCase::output(std::string_view key) const {
  const Tensor* found = find_output(key);
  if (found == nullptr) refuse("recording: {} has no output '{}'", title, key);
  return *found;
}

Recording recording_from_tree(const TreeGroup& root) {
  AttributeReader attributes(root.attributes, {});
  Recording recording;
  if (attributes.text("format") != kRecordingFormat)
    content_error({}, "format is '{}', must be {}", attributes.text("format"), kRecordingFormat);
  const std::int64_t count = attributes.integer("cases");
  recording.stage = attributes.text("stage");
  recording.source = attributes.text("source");
  recording.device = attributes.text("device");
  recording.torch = attributes.text("torch");
  recording.triton = attributes.text("triton");
  attributes.finish();
  if (!root.datasets.empty()) content_error({"", root.datasets.front().name}, "lies in no case");
  if (count != static_cast<std::int64_t>(root.groups.size()))
    content_error({}, "attribute 'cases' is {}, but there are {} groups", count,
                  root.groups.size());
  for (const TreeGroup& group : root.groups) recording.cases.push_back(case_from(group));
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
