#include "tests/fuzz/case_mutations.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <limits>
#include <optional>

#include "fuzz/random.hpp"
#include "golden/case_file.hpp"
#include "golden/seal.hpp"
#include "golden/tensor_data.hpp"
#include "reference/core/contract.hpp"

namespace monoref::testing {
namespace {

namespace fs = std::filesystem;
using Numbers = std::vector<std::int64_t>;

/// Larger cases say nothing that smaller ones do not, and take long to write.
constexpr std::size_t kLargestCase = std::size_t{1} << 20;
/// What a mutation may make of the storage of an input. Small files must not cost gigabytes, so
/// there is no need of large ones.
constexpr std::int64_t kLargestStorage = std::int64_t{1} << 20;

/// Edges of types, of limits and of block sizes.
constexpr std::int64_t kEdges[] = {std::numeric_limits<std::int64_t>::min(),
                                   -(std::int64_t{1} << 32),
                                   -(std::int64_t{1} << 31) - 1,
                                   -(std::int64_t{1} << 31),
                                   -65536,
                                   -129,
                                   -16,
                                   -2,
                                   -1,
                                   0,
                                   1,
                                   2,
                                   3,
                                   7,
                                   8,
                                   15,
                                   16,
                                   17,
                                   33,
                                   60,
                                   64,
                                   65,
                                   127,
                                   128,
                                   129,
                                   255,
                                   256,
                                   257,
                                   1000,
                                   1024,
                                   4096,
                                   65535,
                                   65536,
                                   1'000'000,
                                   std::int64_t{1} << 26,
                                   std::int64_t{1} << 30,
                                   (std::int64_t{1} << 31) - 1,
                                   std::int64_t{1} << 31,
                                   (std::int64_t{1} << 32) - 1,
                                   std::int64_t{1} << 32,
                                   std::int64_t{1} << 35,
                                   std::int64_t{1} << 39,
                                   std::int64_t{1} << 40,
                                   std::numeric_limits<std::int64_t>::max()};

/// A case on its way to become a mutant.
struct Draft {
  TreeGroup& item;
  CounterRandom& random;
};

template <class List>
auto& pick(Draft& draft, List& list) {
  return list[static_cast<std::size_t>(
      draft.random.below(static_cast<std::int64_t>(std::size(list))))];
}

std::int64_t wrapped_sum(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

/// A number beside the one that stands there, or any edge.
std::int64_t other_number(Draft& draft, std::int64_t now) {
  switch (draft.random.below(8)) {
    case 0:
      return wrapped_sum(now, 1);
    case 1:
      return wrapped_sum(now, -1);
    case 2:
      return wrapped_sum(now, now);
    case 3:
      return wrapped_sum(now, draft.random.between(-20, 20));
    default:
      return pick(draft, kEdges);
  }
}

TreeGroup* find_part(TreeGroup& item, std::string_view name) {
  for (TreeGroup& part : item.groups)
    if (part.name == name) return &part;
  return nullptr;
}

template <class T, class Object>
T& attribute(Object& object, std::string_view name) {
  for (TreeAttribute& known : object.attributes)
    if (known.name == name) return std::get<T>(known.value);
  throw ContentError({object.name, ""}, fmt::format("has no attribute '{}'", name));
}

/// The names that an attribute of the case lists, as they stand there.
std::string& listed(Draft& draft, std::string_view part) {
  return attribute<std::string>(draft.item, part);
}

std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at < list.size();) {
    const std::size_t end = std::min(list.find(' ', at), list.size());
    words.push_back(list.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

void list_words(std::string& list, const std::vector<std::string>& words) {
  list = fmt::format("{}", fmt::join(words, " "));
}

void remove_part(TreeGroup& item, std::string_view name) {
  std::erase_if(item.groups, [&](const TreeGroup& part) { return part.name == name; });
}

/// Takes stored outputs away: they are those of the unchanged case.
void drop_expected(Draft& draft) {
  remove_part(draft.item, "expected");
  remove_part(draft.item, "specified");
  listed(draft, "expected").clear();
}

void drop_scalar(Draft& draft, const std::string& name) {
  if (TreeGroup* scalars = find_part(draft.item, "scalars"))
    std::erase_if(scalars->attributes,
                  [&](const TreeAttribute& scalar) { return scalar.name == name; });
  std::vector<std::string> words = words_of(listed(draft, "scalars"));
  std::erase(words, name);
  list_words(listed(draft, "scalars"), words);
}

void set_scalar(Draft& draft, const std::string& name, AttributeValue value) {
  TreeGroup* scalars = find_part(draft.item, "scalars");
  if (scalars == nullptr) {
    draft.item.groups.push_back({.name = "scalars"});
    scalars = &draft.item.groups.back();
  }
  for (TreeAttribute& known : scalars->attributes)
    if (known.name == name) {
      known.value = std::move(value);
      return;
    }
  scalars->attributes.push_back({name, std::move(value)});
  std::vector<std::string> words = words_of(listed(draft, "scalars"));
  words.push_back(name);
  list_words(listed(draft, "scalars"), words);
}

/// One of the case's inputs; null if there is none.
TreeDataset* pick_input(Draft& draft) {
  TreeGroup* inputs = find_part(draft.item, "inputs");
  return inputs == nullptr || inputs->datasets.empty() ? nullptr : &pick(draft, inputs->datasets);
}

/// A scalar of the kind T; null if there is none.
template <class T>
TreeAttribute* pick_scalar(Draft& draft) {
  TreeGroup* scalars = find_part(draft.item, "scalars");
  std::vector<TreeAttribute*> fitting;
  if (scalars != nullptr)
    for (TreeAttribute& scalar : scalars->attributes)
      if (std::holds_alternative<T>(scalar.value) && scalar.name != "sha256")
        fitting.push_back(&scalar);
  return fitting.empty() ? nullptr : pick(draft, fitting);
}

// ---- where the elements of an input lie --------------------------------------------------------

struct Placement {
  Numbers dims, strides, extents;
};

Placement placement_of(TreeDataset& input) {
  return {attribute<Numbers>(input, "dims"), attribute<Numbers>(input, "strides"),
          attribute<Numbers>(input, "extents")};
}

Numbers dense_strides(const Numbers& dims) {
  Numbers strides(dims.size(), 1);
  for (std::size_t axis = dims.size(); axis-- > 1;)
    strides[axis - 1] = static_cast<std::int64_t>(static_cast<std::uint64_t>(strides[axis]) *
                                                  static_cast<std::uint64_t>(dims[axis]));
  return strides;
}

/// The elements that dims and strides span; nothing if that is more than a file may store.
std::optional<std::int64_t> spanned(const Placement& at) {
  std::int64_t last = 0;
  for (std::size_t axis = 0; axis < at.dims.size(); ++axis) {
    if (at.dims[axis] == 0) return 0;
    std::int64_t step = 0;
    if (__builtin_mul_overflow(at.dims[axis] - 1, at.strides[axis], &step) ||
        __builtin_add_overflow(last, step, &last) || last < 0 || last >= kLargestStorage)
      return std::nullopt;
  }
  return last + 1;
}

/// One run of storage, as long as dims and strides need. Where that is too much, an axis of no
/// stride takes its place, which needs nothing.
void store_whole(Placement& at) {
  for (std::size_t axis = 0; axis < at.dims.size() && !spanned(at); ++axis) at.strides[axis] = 0;
  const std::int64_t span = spanned(at).value_or(1);
  at.extents = span > 0 ? Numbers{0, span} : Numbers{};
}

/// Gives an input another placement; its bytes are repeated or cut to what that stores.
void place(TreeDataset& input, const Placement& at) {
  std::int64_t stored = 0;
  for (std::size_t i = 1; i < at.extents.size(); i += 2)
    stored += std::clamp<std::int64_t>(at.extents[i], 0, kLargestStorage);
  const std::vector<std::byte> old = input.bytes;
  const std::size_t size = static_cast<std::size_t>(stored) * stored_size(input.type);
  input.bytes.resize(size);
  for (std::size_t i = old.size(); i < size; ++i)
    input.bytes[i] = old.empty() ? std::byte{} : old[i % old.size()];
  const bool is_dense = at.strides == dense_strides(at.dims) && spanned(at) == stored &&
                        at.extents == (stored > 0 ? Numbers{0, stored} : Numbers{});
  input.dims = is_dense ? at.dims : Numbers{stored};
  attribute<Numbers>(input, "dims") = at.dims;
  attribute<Numbers>(input, "strides") = at.strides;
  attribute<Numbers>(input, "extents") = at.extents;
}

std::string placed(TreeDataset& input, const Placement& at) {
  place(input, at);
  return fmt::format("'{}' has dims [{}], strides [{}], runs [{}]", input.name,
                     fmt::join(at.dims, ", "), fmt::join(at.strides, ", "),
                     fmt::join(at.extents, ", "));
}

std::string change_dims(Draft& draft) {
  TreeDataset* input = pick_input(draft);
  if (input == nullptr) return {};
  Placement at = placement_of(*input);
  if (at.dims.empty()) return {};
  const auto axis =
      static_cast<std::size_t>(draft.random.below(static_cast<std::int64_t>(at.dims.size())));
  at.dims[axis] = other_number(draft, at.dims[axis]);
  if (draft.random.once_in(3))
    at.strides[axis] = 0;
  else
    at.strides = dense_strides(at.dims);
  store_whole(at);
  return placed(*input, at);
}

std::string change_rank(Draft& draft) {
  TreeDataset* input = pick_input(draft);
  if (input == nullptr) return {};
  Placement at = placement_of(*input);
  const auto axis = draft.random.below(static_cast<std::int64_t>(at.dims.size()) + 1);
  switch (draft.random.below(4)) {
    case 0:
      at.dims.insert(at.dims.begin() + axis, draft.random.between(1, 2));
      break;
    case 1:
      if (!at.dims.empty())
        at.dims.erase(at.dims.begin() +
                      std::min(axis, static_cast<std::int64_t>(at.dims.size()) - 1));
      break;
    case 2:
      at.dims.clear();
      break;
    default:
      at.dims.resize(static_cast<std::size_t>(draft.random.between(6, 17)), 1);
  }
  at.strides = dense_strides(at.dims);
  store_whole(at);
  return placed(*input, at);
}

std::string change_strides(Draft& draft) {
  TreeDataset* input = pick_input(draft);
  if (input == nullptr) return {};
  Placement at = placement_of(*input);
  if (at.dims.empty()) return {};
  const auto axis = [&] {
    return static_cast<std::size_t>(draft.random.below(static_cast<std::int64_t>(at.dims.size())));
  };
  const std::size_t one = axis();
  switch (draft.random.below(6)) {
    case 0:
      std::swap(at.strides[one], at.strides[axis()]);
      break;
    case 1:
      at.strides[one] += draft.random.between(1, 40);  // padding behind each row
      break;
    case 2:
      for (std::int64_t& stride : at.strides) stride *= 2;
      break;
    case 3:
      at.strides[one] = 0;
      at.dims[one] = other_number(draft, at.dims[one]);
      break;
    case 4: {
      const std::size_t other = axis();
      std::swap(at.dims[one], at.dims[other]);
      std::swap(at.strides[one], at.strides[other]);
      break;
    }
    default:
      at.strides[one] = other_number(draft, at.strides[one]);
  }
  store_whole(at);
  return placed(*input, at);
}

/// Runs of storage that do not fit the dims and strides: holes, an offset, too much of them.
std::string change_runs(Draft& draft) {
  TreeDataset* input = pick_input(draft);
  if (input == nullptr) return {};
  Placement at = placement_of(*input);
  const std::int64_t span = spanned(at).value_or(1);
  const std::int64_t half = span / 2;
  switch (draft.random.below(8)) {
    case 0:  // does not begin at 0
      at.extents = {draft.random.once_in(2) ? 1 : pick(draft, kEdges), span + 1};
      break;
    case 1:  // stores more than it addresses
      at.extents = {0, span + draft.random.between(1, 1000)};
      break;
    case 2:  // a hole of one element
      at.extents = {0, half, half + 1, std::max<std::int64_t>(span - half - 1, 1)};
      break;
    case 3:  // only the first and the last
      at.extents = {0, 1, std::max<std::int64_t>(span - 1, 1), 1};
      break;
    case 4:  // only the first half, in two runs
      at.extents = {0, std::max<std::int64_t>(half / 2, 1), half / 2 + 1,
                    std::max<std::int64_t>(half - half / 2 - 1, 1)};
      break;
    case 5:  // a run far away
      at.extents = {0, std::max<std::int64_t>(span, 1), pick(draft, kEdges), 1};
      break;
    case 6: {  // each element a run
      const std::int64_t runs = std::min<std::int64_t>(span, 300);
      at.extents.clear();
      for (std::int64_t run = 0; run < runs; ++run) {
        at.extents.push_back(2 * run);
        at.extents.push_back(1);
      }
      for (std::int64_t& stride : at.strides) stride *= 2;
      break;
    }
    default:  // numbers that no run has
      if (at.extents.empty()) at.extents = {0, 1};
      pick(draft, at.extents) = pick(draft, kEdges);
  }
  return placed(*input, at);
}

// ---- what the elements are ---------------------------------------------------------------------

std::string change_type(Draft& draft) {
  TreeDataset* input = pick_input(draft);
  if (input == nullptr) return {};
  const auto type = static_cast<DType>(draft.random.below(11));
  input->type = stored_type(type);
  attribute<std::string>(*input, "dtype") = dtype_name(type);
  place(*input, placement_of(*input));
  return fmt::format("'{}' is {}", input->name, dtype_name(type));
}

template <class T>
void put_at(TreeDataset& input, std::size_t index, T value) {
  std::memcpy(input.bytes.data() + index * sizeof(T), &value, sizeof(T));
}

void put_number(Draft& draft, TreeDataset& input, std::size_t index, std::int64_t number) {
  switch (input.type) {
    case StoredType::kInt32:
      return put_at(input, index, static_cast<std::int32_t>(number));
    case StoredType::kInt64:
      return put_at(input, index, number);
    case StoredType::kFloat32:
      return put_at(input, index, draft.random.bits32());
    case StoredType::kFloat64:
      return put_at(input, index, draft.random.bits64());
    case StoredType::kUInt16:
      return put_at(input, index, static_cast<std::uint16_t>(draft.random.bits32()));
    case StoredType::kUInt8:
      return put_at(input, index, static_cast<std::uint8_t>(draft.random.bits32()));
  }
}

std::string change_values(Draft& draft) {
  TreeDataset* input = pick_input(draft);
  if (input == nullptr) return {};
  const std::size_t count = input->bytes.size() / stored_size(input->type);
  if (count == 0) return {};
  if (draft.random.once_in(6)) {
    for (std::size_t i = 0; i < count; ++i)
      put_number(draft, *input, i, draft.random.between(-1, 300));
    return fmt::format("'{}' is random", input->name);
  }
  const std::int64_t changed = draft.random.once_in(2) ? 1 : draft.random.between(1, 8);
  std::string what;
  for (std::int64_t n = 0; n < changed; ++n) {
    const auto at = static_cast<std::size_t>(draft.random.below(static_cast<std::int64_t>(count)));
    const std::int64_t number = other_number(draft, draft.random.below(200));
    put_number(draft, *input, at, number);
    what = fmt::format("'{}' has {} at {}", input->name, number, at);
  }
  return what;
}

// ---- which inputs and scalars there are --------------------------------------------------------

constexpr std::string_view kOtherNames[] = {"x",      "seq_lens", "block_table", "q_len",
                                            "out.x",  "-",        "sha256",      "slot_mapping",
                                            "defect", "rows",     "unheard_of"};

std::string change_inputs(Draft& draft) {
  TreeGroup* inputs = find_part(draft.item, "inputs");
  TreeDataset* input = pick_input(draft);
  if (input == nullptr) return {};
  std::vector<std::string> words = words_of(listed(draft, "inputs"));
  const std::string name = input->name;
  const std::string other(pick(draft, kOtherNames));
  if (std::any_of(inputs->datasets.begin(), inputs->datasets.end(),
                  [&](const TreeDataset& known) { return known.name == other; }))
    return {};  // a group cannot hold two of a name
  std::string what;
  switch (draft.random.below(6)) {
    case 0:
      std::erase(words, name);
      std::erase_if(inputs->datasets, [&](const TreeDataset& d) { return d.name == name; });
      if (inputs->datasets.empty()) remove_part(draft.item, "inputs");
      what = fmt::format("'{}' is gone", name);
      break;
    case 1:
      std::replace(words.begin(), words.end(), name, other);
      input->name = other;
      what = fmt::format("'{}' is called '{}'", name, other);
      break;
    case 2: {
      TreeDataset copy = *input;
      copy.name = other;
      inputs->datasets.push_back(std::move(copy));
      words.push_back(other);
      what = fmt::format("'{}' is there as '{}' too", name, other);
      break;
    }
    case 3:
      std::reverse(words.begin(), words.end());
      what = "the inputs are listed backwards";
      break;
    case 4: {
      TreeDataset& second = *pick_input(draft);
      if (&second == input) return {};
      what = fmt::format("'{}' and '{}' have changed places", name, second.name);
      std::swap(input->name, second.name);
      break;
    }
    default:
      words.push_back(other);
      what = fmt::format("'{}' is listed and not there", other);
  }
  list_words(listed(draft, "inputs"), words);
  if (TreeGroup* left = find_part(draft.item, "inputs"))
    std::sort(left->datasets.begin(), left->datasets.end(),
              [](const TreeDataset& a, const TreeDataset& b) { return a.name < b.name; });
  return what;
}

std::string change_integer(Draft& draft) {
  TreeAttribute* scalar = pick_scalar<std::int64_t>(draft);
  if (scalar == nullptr) return {};
  auto& value = std::get<std::int64_t>(scalar->value);
  value = other_number(draft, value);
  return fmt::format("'{}' is {}", scalar->name, value);
}

std::string change_real(Draft& draft) {
  TreeAttribute* scalar = pick_scalar<double>(draft);
  if (scalar == nullptr) return {};
  constexpr double kReals[] = {0.0,
                               -0.0,
                               1.0,
                               -1.0,
                               1e-300,
                               1e300,
                               -1e300,
                               5e-324,
                               3.5e38,
                               1e-46,
                               std::numeric_limits<double>::infinity(),
                               -std::numeric_limits<double>::infinity(),
                               std::numeric_limits<double>::quiet_NaN()};
  scalar->value = pick(draft, kReals);
  return fmt::format("'{}' is {}", scalar->name, std::get<double>(scalar->value));
}

std::string other_text(Draft& draft, const std::string& now) {
  const std::string texts[] = {
      "",         "none", "unheard of", now + "x", std::string(3000, 'a'), "{}%s\x1b[31m\n",
      "\xff\xfe", "0"};
  return pick(draft, texts);
}

std::string change_word(Draft& draft) {
  TreeAttribute* scalar = pick_scalar<std::string>(draft);
  if (scalar == nullptr) return {};
  auto& text = std::get<std::string>(scalar->value);
  text = other_text(draft, text);
  return fmt::format("'{}' is a text of {} bytes", scalar->name, text.size());
}

AttributeValue any_scalar(Draft& draft) {
  switch (draft.random.below(3)) {
    case 0:
      return pick(draft, kEdges);
    case 1:
      return 0.5;
    default:
      return other_text(draft, "word");
  }
}

std::string change_scalars(Draft& draft) {
  const std::vector<std::string> words = words_of(listed(draft, "scalars"));
  if (words.empty() || draft.random.once_in(4)) {
    constexpr std::string_view kMore[] = {"out_row_gap", "ranks", "unheard_of", "block_size"};
    const std::string name(pick(draft, kMore));
    set_scalar(draft, name, any_scalar(draft));
    return fmt::format("'{}' is there", name);
  }
  const std::string name = pick(draft, words);
  if (draft.random.once_in(2)) {
    drop_scalar(draft, name);
    return fmt::format("'{}' is gone", name);
  }
  set_scalar(draft, name, any_scalar(draft));
  return fmt::format("'{}' is of another kind", name);
}

std::string claim_defect(Draft& draft) {
  if (draft.random.once_in(3)) {
    set_scalar(draft, "defect", any_scalar(draft));
    return "a defect that is no word";
  }
  set_scalar(draft, "defect", std::string(draft.random.once_in(2) ? "none" : "unheard_of"));
  return "a defect that nobody planted";
}

// ---- what is said about the case ---------------------------------------------------------------

std::string change_contract(Draft& draft) {
  auto& contract = attribute<std::string>(draft.item, "contract");
  if (draft.random.once_in(8)) {
    contract = other_text(draft, contract);
    return fmt::format("a text of {} bytes", contract.size());
  }
  const auto presets = contract_presets();
  if (draft.random.once_in(3)) contract = pick(draft, presets);
  const auto& fields = contract_fields();
  for (std::int64_t n = draft.random.between(1, 3); n > 0; --n) {
    const ContractField& field = pick(draft, fields);
    if (contract.find(field.name) != contract.npos && !draft.random.once_in(20)) continue;
    contract += fmt::format(",{}={}", field.name, pick(draft, field.values));
  }
  return contract;
}

std::string change_texts(Draft& draft, const std::vector<GoldenStage>& golden) {
  constexpr std::string_view kTexts[] = {"stage", "title", "line", "origin", "source"};
  switch (draft.random.below(8)) {
    case 0:
      attribute<std::string>(draft.item, "stage") = pick(draft, golden).name;
      return "stage of another case";
    case 1:
      attribute<std::uint64_t>(draft.item, "seed") = draft.random.bits64();
      return "seed";
    case 2:
      attribute<std::int64_t>(draft.item, "generator_version") = pick(draft, kEdges);
      return "generator_version";
    case 3: {
      std::string& line = attribute<std::string>(draft.item, "line");
      const std::string_view more = line.empty() ? "stage=" : ";stage=none";
      line += draft.random.once_in(2) ? ";gen=99;seed=-1" : more;
      return "line";
    }
    default: {
      const std::string name(pick(draft, kTexts));
      auto& text = attribute<std::string>(draft.item, name);
      text = other_text(draft, text);
      return name;
    }
  }
}

std::string change_expected(Draft& draft) {
  TreeGroup* expected = find_part(draft.item, "expected");
  if (expected == nullptr || expected->datasets.empty()) return {};
  TreeDataset& output = pick(draft, expected->datasets);
  std::vector<std::string> words = words_of(listed(draft, "expected"));
  switch (draft.random.below(4)) {
    case 0: {
      Placement at = placement_of(output);
      if (at.dims.empty()) return {};
      std::int64_t& dim = pick(draft, at.dims);
      dim = other_number(draft, dim);
      at.strides = dense_strides(at.dims);
      store_whole(at);
      return placed(output, at);
    }
    case 1: {
      const std::string name = output.name;
      output.name = "unheard_of";
      std::replace(words.begin(), words.end(), name, output.name);
      list_words(listed(draft, "expected"), words);
      std::sort(expected->datasets.begin(), expected->datasets.end(),
                [](const TreeDataset& a, const TreeDataset& b) { return a.name < b.name; });
      remove_part(draft.item, "specified");
      return fmt::format("'{}' is called 'unheard_of'", name);
    }
    case 2: {
      const auto type = static_cast<DType>(draft.random.below(11));
      output.type = stored_type(type);
      attribute<std::string>(output, "dtype") = dtype_name(type);
      place(output, placement_of(output));
      return fmt::format("'{}' is {}", output.name, dtype_name(type));
    }
    default:
      for (std::byte& byte : output.bytes) byte = static_cast<std::byte>(draft.random.below(256));
      return fmt::format("'{}' is random", output.name);
  }
}

// ---- the mutant --------------------------------------------------------------------------------

struct MutationKind {
  std::string_view name;
  int weight;
  /// Changes the case and says how; empty if it has nothing to change.
  std::string (*apply)(Draft&, const std::vector<GoldenStage>&);
};

template <std::string (*Function)(Draft&)>
std::string plain(Draft& draft, const std::vector<GoldenStage>&) {
  return Function(draft);
}

constexpr MutationKind kKinds[] = {
    {"dims", 4, plain<change_dims>},         {"rank", 2, plain<change_rank>},
    {"strides", 4, plain<change_strides>},   {"runs", 4, plain<change_runs>},
    {"type", 2, plain<change_type>},         {"values", 6, plain<change_values>},
    {"inputs", 2, plain<change_inputs>},     {"integer", 6, plain<change_integer>},
    {"real", 2, plain<change_real>},         {"word", 1, plain<change_word>},
    {"scalars", 2, plain<change_scalars>},   {"defect", 1, plain<claim_defect>},
    {"contract", 3, plain<change_contract>}, {"texts", 1, change_texts},
    {"expected", 2, plain<change_expected>}};

const MutationKind& pick_kind(CounterRandom& random) {
  int sum = 0;
  for (const MutationKind& kind : kKinds) sum += kind.weight;
  std::int64_t left = random.below(sum);
  for (const MutationKind& kind : kKinds)
    if ((left -= kind.weight) < 0) return kind;
  return kKinds[0];
}

void collect_names(const TreeGroup& item, std::vector<std::string>& names) {
  for (const TreeGroup& part : item.groups) {
    for (const TreeDataset& dataset : part.datasets) names.push_back(dataset.name);
    for (const TreeAttribute& scalar : part.attributes)
      if (scalar.name != "sha256") names.push_back(scalar.name);
  }
  for (const std::string_view list : {"inputs", "scalars", "expected"})
    for (const TreeAttribute& known : item.attributes)
      if (known.name == list)
        for (std::string& word : words_of(std::get<std::string>(known.value)))
          names.push_back(std::move(word));
}

std::size_t bytes_of(const TreeGroup& item) {
  std::size_t sum = 0;
  for (const TreeGroup& part : item.groups)
    for (const TreeDataset& dataset : part.datasets) sum += dataset.bytes.size();
  return sum;
}

}  // namespace

std::vector<GoldenStage> load_golden(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".h5") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<GoldenStage> golden;
  for (const fs::path& file : files) {
    TreeGroup root = tree_from_cases(read_cases(file));
    std::erase_if(root.groups, [](const TreeGroup& item) { return bytes_of(item) > kLargestCase; });
    if (!root.groups.empty()) golden.push_back({file.stem().string(), std::move(root.groups)});
  }
  return golden;
}

CaseMutant make_mutant(const std::vector<GoldenStage>& golden, std::uint64_t seed,
                       std::uint64_t number) {
  CounterRandom random(seed, number);
  const GoldenStage& stage = golden[number % golden.size()];
  CaseMutant mutant;
  mutant.stage = stage.name;
  mutant.root.attributes = {{"format", std::string(kCaseFormat)},
                            {"schema", std::int64_t{1}},
                            {"count", std::int64_t{1}}};
  mutant.root.groups.push_back(stage.cases[static_cast<std::size_t>(
      random.below(static_cast<std::int64_t>(stage.cases.size())))]);
  TreeGroup& item = mutant.root.groups.front();
  item.name = "case_000000";
  collect_names(item, mutant.names);
  Draft draft{item, random};
  // Another change may mend a planted defect, and then the case is right to be accepted.
  drop_scalar(draft, "defect");
  mutant.claims_results = random.once_in(10);
  if (!mutant.claims_results) drop_expected(draft);
  const std::int64_t wanted = random.once_in(2) ? 1 : random.between(1, 3);
  for (int tries = 0; tries < 50 && std::ssize(mutant.changes) < wanted; ++tries) {
    const MutationKind& kind = pick_kind(random);
    const std::string change = kind.apply(draft, golden);
    if (change.empty()) continue;
    mutant.changes.push_back(fmt::format("{}: {}", kind.name, change));
    if (kind.name == "defect") mutant.claims_results = true;
  }
  std::erase_if(item.groups, [](const TreeGroup& part) {
    return part.datasets.empty() && part.attributes.empty();
  });
  std::sort(item.groups.begin(), item.groups.end(),
            [](const TreeGroup& a, const TreeGroup& b) { return a.name < b.name; });
  collect_names(item, mutant.names);
  seal(mutant.root);
  return mutant;
}

std::vector<std::string_view> mutation_kinds() {
  std::vector<std::string_view> names;
  for (const MutationKind& kind : kKinds) names.push_back(kind.name);
  return names;
}

}  // namespace monoref::testing
