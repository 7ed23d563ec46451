#include "golden/case_file.hpp"

#include <algorithm>
#include <array>
#include <unordered_set>

#include "golden/load.hpp"
#include "golden/seal.hpp"
#include "golden/tensor_data.hpp"
#include "reference/core/excerpt.hpp"

namespace monoref {
namespace {

constexpr std::int64_t kSchema = 1;
constexpr std::size_t kMaxCases = 100'000;
constexpr std::size_t kMaxName = 128;
/// The groups that a case may have, in the order of their names.
constexpr std::array<std::string_view, 4> kParts{"expected", "inputs", "scalars", "specified"};

std::string group_name(std::size_t index) {
  return fmt::format("case_{:06}", index);
}

// ---- writing -----------------------------------------------------------------------------------

/// Throws unless a name can be a member of a group and an item of a list of names.
void check_name(const std::string& name, const FilePlace& place) {
  const auto legal = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '+' || c == '-';
  };
  if (name.empty() || name.size() > kMaxName || !std::all_of(name.begin(), name.end(), legal) ||
      name.find_first_not_of('.') == std::string::npos || name == "sha256")
    content_error(place,
                  "'{}' cannot be a name: it must be 1 to {} of A-Z a-z 0-9 _ . + -, not "
                  "dots alone and not sha256",
                  name, kMaxName);
}

void check_text(const std::string& text, std::string_view what, const FilePlace& place) {
  if (text.size() > file_limits::kTextBytes)
    content_error(place, "{} is a text of {} bytes, the limit is {}", what, text.size(),
                  file_limits::kTextBytes);
  if (text.find('\0') != std::string::npos)
    content_error(place, "{} is a text with a zero byte in it", what);
}

template <class Items>
std::string name_list(const Items& items, const FilePlace& place) {
  std::string list;
  for (const auto& item : items) {
    check_name(item.name, place);
    list += list.empty() ? item.name : " " + item.name;
  }
  check_text(list, "the list of names", place);
  return list;
}

TreeDataset dataset_from(const std::string& name, const Tensor& tensor, const FilePlace& place) {
  const Layout& layout = tensor.layout();
  check_layout(layout, tensor.type(), place);
  TreeDataset dataset;
  dataset.name = name;
  dataset.type = stored_type(tensor.type());
  dataset.dims = layout.is_dense() ? layout.dims : std::vector{layout.stored()};
  dataset.bytes = tensor.image();
  std::vector<std::int64_t> extents;
  for (const Extent& extent : layout.extents) {
    extents.push_back(extent.offset);
    extents.push_back(extent.count);
  }
  if (extents.size() > file_limits::kTextBytes / sizeof(std::int64_t))
    content_error(place, "has {} runs of storage, the limit is {}", layout.extents.size(),
                  file_limits::kTextBytes / sizeof(std::int64_t) / 2);
  dataset.attributes = {{"dtype", std::string(dtype_name(tensor.type()))},
                        {"dims", layout.dims},
                        {"strides", layout.strides},
                        {"extents", std::move(extents)}};
  return dataset;
}

TreeGroup scalars_group(const Case& item, const FilePlace& place) {
  TreeGroup group;
  group.name = "scalars";
  for (const NamedScalar& scalar : item.scalars) {
    if (const auto* text = std::get_if<std::string>(&scalar.value))
      check_text(*text, fmt::format("scalar '{}'", scalar.name), place);
    std::visit([&](const auto& value) { group.attributes.push_back({scalar.name, value}); },
               scalar.value);
  }
  return group;
}

/// Members of a group come back from a file in the order of their names.
void sort_datasets(TreeGroup& group) {
  std::sort(group.datasets.begin(), group.datasets.end(),
            [](const TreeDataset& a, const TreeDataset& b) { return a.name < b.name; });
}

std::vector<TreeGroup> parts_from(const Case& item, const std::string& path) {
  TreeGroup expected, inputs, specified;
  expected.name = "expected";
  inputs.name = "inputs";
  specified.name = "specified";
  for (const NamedTensor& input : item.inputs)
    inputs.datasets.push_back(
        dataset_from(input.name, input.tensor, {path + "/inputs", input.name}));
  for (const ExpectedOutput& output : item.expected) {
    expected.datasets.push_back(
        dataset_from(output.name, output.tensor, {path + "/expected", output.name}));
    if (output.specified)
      specified.datasets.push_back(
          dataset_from(output.name, *output.specified, {path + "/specified", output.name}));
  }
  std::vector<TreeGroup> parts{std::move(expected), std::move(inputs),
                               scalars_group(item, {path, ""}), std::move(specified)};
  std::erase_if(parts,
                [](const TreeGroup& g) { return g.datasets.empty() && g.attributes.empty(); });
  for (TreeGroup& part : parts) sort_datasets(part);
  return parts;
}

TreeGroup group_from(const Case& item, const std::string& name) {
  const FilePlace place{name, ""};
  const std::array<std::pair<std::string_view, const std::string*>, 5> texts{{
      {"title", &item.title},
      {"stage", &item.stage},
      {"line", &item.line},
      {"origin", &item.provenance.origin},
      {"source", &item.provenance.source},
  }};
  TreeGroup group;
  group.name = name;
  for (const auto& [key, text] : texts) {
    check_text(*text, key, place);
    group.attributes.push_back({std::string(key), *text});
  }
  group.attributes.push_back({"contract", item.contract.text()});
  group.attributes.push_back({"seed", item.seed});
  group.attributes.push_back({"generator_version", std::int64_t{item.generator_version}});
  group.attributes.push_back({"scalars", name_list(item.scalars, place)});
  group.attributes.push_back({"inputs", name_list(item.inputs, place)});
  group.attributes.push_back({"expected", name_list(item.expected, place)});
  group.groups = parts_from(item, name);
  return group;
}

// ---- reading -----------------------------------------------------------------------------------

std::vector<std::string> split_names(const std::string& list, const FilePlace& place) {
  std::vector<std::string> names;
  std::unordered_set<std::string> seen;
  for (std::size_t at = 0; at < list.size();) {
    const std::size_t end = std::min(list.find(' ', at), list.size());
    names.push_back(list.substr(at, end - at));
    check_name(names.back(), place);
    if (!seen.insert(names.back()).second)
      content_error(place, "the name '{}' is used twice", names.back());
    at = end + 1;
  }
  return names;
}

Layout layout_from(AttributeReader& attributes, DType type, const FilePlace& place) {
  Layout layout{attributes.list("dims"), attributes.list("strides"), {}};
  const std::vector<std::int64_t>& flat = attributes.list("extents");
  if (flat.size() % 2 != 0)
    content_error(place, "attribute 'extents' lists {} numbers, must be pairs", flat.size());
  for (std::size_t i = 0; i < flat.size(); i += 2) layout.extents.push_back({flat[i], flat[i + 1]});
  check_layout(layout, type, place);
  return layout;
}

Tensor tensor_from(const TreeDataset& dataset, const FilePlace& place) {
  AttributeReader attributes(dataset.attributes, place);
  attributes.text("sha256");  // verified already
  const DType type = dtype_from_attribute(attributes.text("dtype"), dataset.type, place);
  const Layout layout = layout_from(attributes, type, place);
  attributes.finish();
  const auto shape = layout.is_dense() ? layout.dims : std::vector{layout.stored()};
  if (dataset.dims != shape)
    content_error(place, "has the shape [{}], must have [{}] as its layout needs",
                  fmt::join(dataset.dims, ", "), fmt::join(shape, ", "));
  return laid_out_tensor(type, layout, dataset, place);
}

/// The parts of a case's group, each found at most once.
class CaseParts {
 public:
  explicit CaseParts(const TreeGroup& group) : group_(group) {
    for (const TreeGroup& part : group.groups)
      if (std::find(kParts.begin(), kParts.end(), part.name) == kParts.end())
        content_error({group.name + "/" + part.name, ""},
                      "is not a part of a case, must be one of {}", fmt::join(kParts, ", "));
    if (!group.datasets.empty())
      content_error({group.name, group.datasets.front().name},
                    "lies in no part of the case, must be in one of {}", fmt::join(kParts, ", "));
  }

  std::string path(std::string_view part) const { return fmt::format("{}/{}", group_.name, part); }

  const TreeGroup* find(std::string_view part) const {
    for (const TreeGroup& below : group_.groups)
      if (below.name == part) return &below;
    return nullptr;
  }

  const TreeDataset* find_dataset(std::string_view part, const std::string& name) const {
    if (const TreeGroup* group = find(part))
      for (const TreeDataset& dataset : group->datasets)
        if (dataset.name == name) return &dataset;
    return nullptr;
  }

  Tensor tensor(std::string_view part, const std::string& name) const {
    const TreeDataset* dataset = find_dataset(part, name);
    const FilePlace place{path(part), name};
    if (dataset == nullptr) content_error(place, "is missing, but listed by the case");
    return tensor_from(*dataset, place);
  }

  /// Throws if a part of datasets holds anything beside `names`.
  void require_only(std::string_view part, const std::vector<std::string>& names) const {
    const TreeGroup* group = find(part);
    if (group == nullptr) return;
    if (!group->groups.empty())
      content_error({path(part), ""}, "has a group '{}' in it", group->groups.front().name);
    for (const TreeDataset& dataset : group->datasets)
      if (std::find(names.begin(), names.end(), dataset.name) == names.end())
        content_error({path(part), dataset.name}, "is not listed by the case");
    for (const TreeAttribute& attribute : group->attributes)
      if (attribute.name != "sha256")
        content_error({path(part), ""}, "has an attribute '{}', which this format does not know",
                      attribute.name);
  }

 private:
  const TreeGroup& group_;
};

std::vector<NamedScalar> scalars_from(const CaseParts& parts,
                                      const std::vector<std::string>& names) {
  const FilePlace place{parts.path("scalars"), ""};
  const TreeGroup* group = parts.find("scalars");
  const TreeGroup empty;
  if (group == nullptr) group = &empty;
  if (!group->groups.empty() || !group->datasets.empty())
    content_error(place, "must hold attributes only");
  std::vector<NamedScalar> scalars;
  for (const std::string& name : names) {
    const AttributeValue* value = group->find_attribute(name);
    if (value == nullptr) content_error(place, "has no attribute '{}'", name);
    if (const auto* integer = std::get_if<std::int64_t>(value))
      scalars.push_back({name, *integer});
    else if (const auto* real = std::get_if<double>(value))
      scalars.push_back({name, *real});
    else if (const auto* text = std::get_if<std::string>(value))
      scalars.push_back({name, *text});
    else
      content_error(place, "attribute '{}' must be an int64, a float64 or a text", name);
  }
  const std::size_t seals = group->find_attribute("sha256") != nullptr ? 1 : 0;
  if (group->attributes.size() != names.size() + seals)
    content_error(place, "has {} attributes, must have {}, one for each scalar of the case",
                  group->attributes.size() - seals, names.size());
  return scalars;
}

void check_mask(const ExpectedOutput& output, const FilePlace& place) {
  const Tensor& mask = *output.specified;
  if (mask.type() != DType::kUInt8 || mask.dims() != output.tensor.dims() ||
      !mask.layout().is_dense())
    content_error(place, "must be dense uint8 of the output's dims [{}]",
                  fmt::join(output.tensor.dims(), ", "));
  for (const std::byte byte : mask.image())
    if (std::to_integer<int>(byte) > 1)
      content_error(place, "holds the value {}, must be 0 or 1", std::to_integer<int>(byte));
}

std::vector<ExpectedOutput> expected_from(const CaseParts& parts,
                                          const std::vector<std::string>& names) {
  std::vector<ExpectedOutput> expected;
  for (const std::string& name : names) {
    ExpectedOutput& output = expected.emplace_back();
    output.name = name;
    output.tensor = parts.tensor("expected", name);
    if (parts.find_dataset("specified", name) == nullptr) continue;
    output.specified = parts.tensor("specified", name);
    check_mask(output, {parts.path("specified"), name});
  }
  return expected;
}

Contract contract_from(const std::string& text, const FilePlace& place) {
  try {
    return Contract::parse(text);
  } catch (const Refusal& refusal) {
    content_error(place, "attribute 'contract' is '{}': {}", excerpt(text), refusal.what());
  }
}

Case case_from(const TreeGroup& group) {
  const FilePlace place{group.name, ""};
  AttributeReader attributes(group.attributes, place);
  Case item;
  attributes.text("sha256");  // verified already
  item.title = attributes.text("title");
  item.stage = attributes.text("stage");
  item.line = attributes.text("line");
  item.provenance = {attributes.text("origin"), attributes.text("source")};
  item.contract = contract_from(attributes.text("contract"), place);
  item.seed = attributes.natural("seed");
  const std::int64_t version = attributes.integer("generator_version");
  if (version < 0 || version > UINT32_MAX)
    content_error(place, "attribute 'generator_version' is {}, must be 0 to {}", version,
                  UINT32_MAX);
  item.generator_version = static_cast<std::uint32_t>(version);
  const auto scalars = split_names(attributes.text("scalars"), place);
  const auto inputs = split_names(attributes.text("inputs"), place);
  const auto expected = split_names(attributes.text("expected"), place);
  attributes.finish();
  if (item.title.empty() || item.stage.empty())
    content_error(place, "attribute '{}' is empty, must be a name",
                  item.title.empty() ? "title" : "stage");

  const CaseParts parts(group);
  item.scalars = scalars_from(parts, scalars);
  for (const std::string& name : inputs)
    item.inputs.push_back({name, parts.tensor("inputs", name)});
  item.expected = expected_from(parts, expected);
  parts.require_only("inputs", inputs);
  parts.require_only("expected", expected);
  parts.require_only("specified", expected);
  return item;
}

void check_titles(const std::vector<Case>& cases) {
  std::unordered_set<std::string> seen;
  for (std::size_t i = 0; i < cases.size(); ++i)
    if (!seen.insert(cases[i].title).second)
      content_error({group_name(i), ""}, "the title '{}' is used by an earlier case",
                    cases[i].title);
}

}  // namespace

std::vector<Case> cases_from_tree(const TreeGroup& root) {
  AttributeReader attributes(root.attributes, {});
  if (attributes.text("format") != kCaseFormat)
    content_error({}, "format is '{}', must be {}", excerpt(attributes.text("format")),
                  kCaseFormat);
  if (attributes.integer("schema") != kSchema)
    content_error({}, "attribute 'schema' is {}, must be {}", attributes.integer("schema"),
                  kSchema);
  verify_seals(root);
  const std::int64_t count = attributes.integer("count");
  attributes.text("sha256");
  attributes.finish();
  if (!root.datasets.empty()) content_error({"", root.datasets.front().name}, "lies in no case");
  if (count != static_cast<std::int64_t>(root.groups.size()) || root.groups.size() > kMaxCases)
    content_error({}, "attribute 'count' is {}, there are {} groups, and the limit is {}", count,
                  root.groups.size(), kMaxCases);
  std::vector<Case> cases;
  for (const TreeGroup& group : root.groups) {
    if (group.name != group_name(cases.size()))
      content_error({group.name, ""}, "must be named '{}'", group_name(cases.size()));
    cases.push_back(case_from(group));
  }
  check_titles(cases);
  return cases;
}

TreeGroup tree_from_cases(std::span<const Case> cases) {
  TreeGroup root;
  root.attributes = {{"format", std::string(kCaseFormat)},
                     {"schema", kSchema},
                     {"count", static_cast<std::int64_t>(cases.size())}};
  for (const Case& item : cases)
    root.groups.push_back(group_from(item, group_name(root.groups.size())));
  seal(root);
  return root;
}

std::vector<Case> read_cases(const std::filesystem::path& path, const ReadLimits& limits) {
  const std::array formats{kCaseFormat};
  const TreeGroup tree = load_tree(path, formats, limits);
  try {
    return cases_from_tree(tree);
  } catch (const ContentError& error) {
    throw FileError(path.string(), error.what());
  }
}

void write_cases(const std::filesystem::path& path, std::span<const Case> cases,
                 const WriteObserver& observer) {
  try {
    const TreeGroup tree = tree_from_cases(cases);
    cases_from_tree(tree);  // what is written can be read
    replace_file(path, [&](const auto& temporary) { write_hdf5(temporary, tree); }, observer);
  } catch (const FileError&) {
    throw;
  } catch (const std::runtime_error& error) {
    throw FileError(path.string(), fmt::format("cannot be written: {}", error.what()));
  }
}

}  // namespace monoref
