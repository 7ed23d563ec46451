#include "fuzz/inputs.hpp"

#include <algorithm>
#include <cctype>
#include <map>
#include <numeric>
#include <utility>

#include "reference/rules/fp8_rules.hpp"
#include "reference/rules/stage_checks.hpp"

namespace monoref {
namespace {

bool is_digit(char letter) {
  return std::isdigit(static_cast<unsigned char>(letter)) != 0;
}

bool is_one_of_many(std::string_view listed) {
  return listed.find('#') != std::string_view::npos;
}
/// The axis of an input of a chain: `#` is the first number of the input's name.
std::string axis_name(std::string name, std::string_view input) {
  const std::size_t hash = name.find('#');
  if (hash == std::string::npos) return name;
  const auto first = std::find_if(input.begin(), input.end(), is_digit);
  const auto last = std::find_if_not(first, input.end(), is_digit);
  return name.replace(hash, 1, std::string(first, last));
}

/// A stage's lists, held against one case.
class Check {
 public:
  Check(const Stage& stage, const Case& item) : stage_(stage), item_(item) {}

  void run() {
    if (!stage_.variant.empty()) {
      check_scalars(true);
      variant_ = item_.word(std::string(stage_.variant));
    }
    check_names(item_.inputs, stage_.inputs, "an input", false);
    check_names(item_.scalars, stage_.scalars, "a parameter", true);
    for (const NamedTensor& input : item_.inputs) check_input(input);
    for (const InputSpec& spec : stage_.inputs)
      if (!spec.optional && !is_one_of_many(spec.name) && applies(spec))
        static_cast<void>(item_.input(spec.name));
    check_scalars(false);
    check_defect();
  }

 private:
  template <class Spec>
  bool applies(const Spec& spec) const {
    return spec.variant.empty() || spec.variant == variant_;
  }

  template <class Spec>
  const Spec* find(const std::vector<Spec>& specs, std::string_view name) const {
    const auto found = std::find_if(specs.begin(), specs.end(), [&](const Spec& spec) {
      return applies(spec) && fits(spec.name, name);
    });
    return found == specs.end() ? nullptr : &*found;
  }

  /// Refuses names that no list has, and those that stand twice.
  template <class Named, class Spec>
  void check_names(const std::vector<Named>& items, const std::vector<Spec>& specs,
                   std::string_view what, bool takes_defect) const {
    std::vector<std::string> known;
    for (const Spec& spec : specs)
      if (applies(spec)) known.push_back(spec.name);
    for (auto one = items.begin(); one != items.end(); ++one) {
      const bool is_defect = takes_defect && one->name == "defect";
      if (find(specs, one->name) == nullptr && !is_defect)
        refuse("{}: the case has {} '{}', must have only {}", stage_.name, what, one->name,
               fmt::join(known, ", "));
      if (std::any_of(items.begin(), one,
                      [&](const Named& before) { return before.name == one->name; }))
        refuse("{}: the case has {} '{}' twice", stage_.name, what, one->name);
    }
  }

  void check_input(const NamedTensor& input) {
    const InputSpec& spec = *find(stage_.inputs, input.name);
    const std::string argument = fmt::format("{}: {}", stage_.name, input.name);
    check_type(argument, spec, input.tensor);
    check_extents(argument, input.tensor.dims());
    for (std::size_t axis = 0; axis < spec.rank(); ++axis)
      check_axis(input, axis, axis_name(spec.axes[axis], input.name));
    check_storage(argument, spec.storage, input.tensor.layout());
  }

  static void check_type(const std::string& argument, const InputSpec& spec, const Tensor& tensor) {
    std::vector<std::string_view> names;
    for (const DType type : spec.types) names.push_back(dtype_name(type));
    if (std::find(spec.types.begin(), spec.types.end(), tensor.type()) == spec.types.end())
      refuse("{} is {}, must be {}", argument, dtype_name(tensor.type()), fmt::join(names, " or "));
    if (tensor.rank() != spec.rank())
      refuse("{} has rank {}, must have {}", argument, tensor.rank(), spec.rank());
  }

  static void check_extents(const std::string& argument, const std::vector<std::int64_t>& dims) {
    const bool is_empty = std::find(dims.begin(), dims.end(), 0) != dims.end();
    const std::int64_t limit = is_empty ? limits::kEmptyExtent : limits::kExtent;
    for (std::size_t axis = 0; axis < dims.size(); ++axis)
      if (dims[axis] > limit)
        refuse("{} has {} in dimension {}, the limit is {}{}", argument, dims[axis], axis, limit,
               is_empty ? " beside an empty one" : "");
  }

  /// Axes of one name have one extent, and one in its range.
  void check_axis(const NamedTensor& input, std::size_t axis, const std::string& name) {
    const std::int64_t extent = input.tensor.dim(axis);
    for (const SizeSpec& size : stage_.sizes) {
      if (size.axis != name) continue;
      if (extent < size.low || extent > size.high || extent % size.multiple != 0)
        refuse("{}: {} has {} in dimension {} ({}), must have {} to {}{}", stage_.name, input.name,
               extent, axis, name, size.low, size.high,
               size.multiple == 1 ? "" : fmt::format(", a multiple of {}", size.multiple));
    }
    const auto [known, is_new] = extents_.try_emplace(name, extent, input.name);
    if (!is_new && known->second.first != extent)
      refuse("{}: {} has {} in dimension {} ({}), must have {} as {} has", stage_.name, input.name,
             extent, axis, name, known->second.first, known->second.second);
  }

  static void check_storage(const std::string& argument, InputStorage storage,
                            const Layout& layout);

  void check_scalars(bool of_variant_alone) const {
    for (const ScalarSpec& spec : stage_.scalars) {
      if (of_variant_alone && spec.name != stage_.variant) continue;
      if (!of_variant_alone && !applies(spec)) continue;
      bool is_there = false;
      for (const NamedScalar& scalar : item_.scalars)
        if (fits(spec.name, scalar.name)) {
          check_scalar(spec, scalar.name);
          is_there = true;
        }
      if (!is_there && !spec.optional && !is_one_of_many(spec.name))
        refuse("{}: the case has no parameter '{}'", stage_.name, spec.name);
    }
  }

  void check_scalar(const ScalarSpec& spec, const std::string& name) const {
    switch (spec.kind) {
      case ScalarSpec::Kind::kInteger:
        check_integer(spec, name);
        return;
      case ScalarSpec::Kind::kReal:
        if (const double value = item_.real(name); !(value >= spec.least && value <= spec.most))
          refuse("{}: {} is {}, must be {} to {}", stage_.name, name, value, spec.least, spec.most);
        return;
      case ScalarSpec::Kind::kWord:
        check_word(name, spec.words);
    }
  }

  void check_integer(const ScalarSpec& spec, const std::string& name) const {
    const std::int64_t value = ranged_parameter(item_, name, spec.low, spec.high);
    if (value % spec.multiple != 0)
      refuse("{}: {} is {}, must be a multiple of {}", stage_.name, name, value, spec.multiple);
    const auto axis = extents_.find(name);
    if (axis != extents_.end() && axis->second.first != value)
      refuse("{}: {} is {}, must be {}, the extent of {}", stage_.name, name, value,
             axis->second.first, axis->second.second);
  }

  void check_word(const std::string& name, const std::vector<std::string_view>& words) const {
    const std::string& word = item_.word(name);
    if (std::find(words.begin(), words.end(), word) == words.end())
      refuse("{}: {} is '{}', must be {}", stage_.name, name, word, fmt::join(words, " or "));
  }

  /// A defect that no generator of the stage plants is no reason to expect a refusal.
  void check_defect() const {
    std::vector<std::string_view> words{"none"};
    for (const Dimension& dimension : stage_.dimensions)
      if (dimension.name == "defect") words.assign(dimension.words.begin(), dimension.words.end());
    for (const NamedScalar& scalar : item_.scalars)
      if (scalar.name == "defect") check_word("defect", words);
  }

  const Stage& stage_;
  const Case& item_;
  std::string variant_;
  std::map<std::string, std::pair<std::int64_t, std::string>> extents_;
};

/// Strides count only along axes with more than one element.
void check_rows(const std::string& argument, const Layout& layout) {
  std::int64_t least = 1;
  for (std::size_t axis = layout.dims.size(); axis-- > 0;) {
    const std::int64_t stride = layout.strides[axis];
    const bool may_gap = axis == 0 && layout.dims.size() > 1;
    if (layout.dims[axis] > 1 && (may_gap ? stride < least : stride != least))
      refuse("{} has stride {} in dimension {}, must have {}{}", argument, stride, axis,
             may_gap ? "at least " : "", least);
    least *= layout.dims[axis];
  }
}

void check_last_axis(const std::string& argument, const Layout& layout) {
  if (layout.dims.back() > 1 && layout.strides.back() != 1)
    refuse("{} has stride {} in dimension {}, must have 1", argument, layout.strides.back(),
           layout.dims.size() - 1);
}

/// Elements have places of their own if each axis, from the shortest step up, steps over all that
/// lies inside it.
void check_apart(const std::string& argument, const Layout& layout) {
  std::vector<std::size_t> axes(layout.dims.size());
  std::iota(axes.begin(), axes.end(), std::size_t{0});
  std::erase_if(axes, [&](std::size_t axis) { return layout.dims[axis] == 1; });
  std::stable_sort(axes.begin(), axes.end(), [&](std::size_t a, std::size_t b) {
    return layout.strides[a] < layout.strides[b];
  });
  std::int64_t reach = 1;
  for (const std::size_t axis : axes) {
    if (layout.strides[axis] < reach)
      refuse("{} has stride {} in dimension {}, must have at least {}", argument,
             layout.strides[axis], axis, reach);
    reach += (layout.dims[axis] - 1) * layout.strides[axis];
  }
}

void check_dense(const std::string& argument, const Layout& layout) {
  const std::vector<std::int64_t> dense = Layout::dense(layout.dims).strides;
  if (layout.strides != dense)
    refuse("{} has strides [{}], must be dense, [{}]", argument, fmt::join(layout.strides, ", "),
           fmt::join(dense, ", "));
}

/// One run from element 0, that ends with the last element.
void check_no_holes(const std::string& argument, const Layout& layout) {
  if (layout.extents.size() > 1)
    refuse("{} is stored in {} runs, must be in one", argument, layout.extents.size());
  const std::int64_t needed = Layout::strided(layout.dims, layout.strides).span();
  const Extent run = layout.extents.empty() ? Extent{} : layout.extents.front();
  if (run.offset != 0 || run.count != needed)
    refuse("{} stores elements {} to {}, must store 0 to {}", argument, run.offset,
           run.offset + run.count - 1, needed - 1);
}

/// The last row of a cache may have padding behind it too; nothing lies behind that.
void check_runs(const std::string& argument, const Layout& layout) {
  std::int64_t end = layout.elements() == 0 ? 0 : 1;
  for (std::size_t axis = 0; end > 0 && axis < layout.dims.size(); ++axis) {
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(layout.dims[axis], layout.strides[axis], &reach))
      refuse("{} has {} in dimension {} at stride {}, which is beyond 63 bits", argument,
             layout.dims[axis], axis, layout.strides[axis]);
    end = std::max(end, reach);
  }
  if (layout.span() > end)
    refuse("{} stores elements up to {}, must end at {}", argument, layout.span() - 1, end - 1);
}

void Check::check_storage(const std::string& argument, InputStorage storage, const Layout& layout) {
  const bool may_miss = storage == InputStorage::kSparse || storage == InputStorage::kCache;
  if (may_miss)
    check_runs(argument, layout);
  else
    check_no_holes(argument, layout);
  if (layout.elements() == 0) return;
  switch (storage) {
    case InputStorage::kDense:
    case InputStorage::kSparse:
      return check_dense(argument, layout);
    case InputStorage::kRows:
      return check_rows(argument, layout);
    case InputStorage::kNested:
    case InputStorage::kCache:
      check_last_axis(argument, layout);
      return check_apart(argument, layout);
    case InputStorage::kStrided:
      return check_apart(argument, layout);
  }
}

}  // namespace

bool fits(std::string_view listed, std::string_view name) {
  std::size_t at = 0;
  for (const char letter : listed) {
    if (letter != '#') {
      if (at == name.size() || name[at++] != letter) return false;
      continue;
    }
    const std::size_t start = at;
    while (at < name.size() && is_digit(name[at])) ++at;
    if (at == start) return false;
  }
  return at == name.size();
}

InputSpec InputSpec::of(std::string_view the_variant) && {
  variant = the_variant;
  return std::move(*this);
}

ScalarSpec ScalarSpec::integer(std::string name, std::int64_t low, std::int64_t high,
                               std::int64_t multiple) {
  return {.name = std::move(name),
          .kind = Kind::kInteger,
          .low = low,
          .high = high,
          .multiple = multiple};
}

ScalarSpec ScalarSpec::real(std::string name, double least, double most) {
  return {.name = std::move(name), .kind = Kind::kReal, .least = least, .most = most};
}

ScalarSpec ScalarSpec::finite(std::string name) {
  constexpr double kMost = std::numeric_limits<float>::max();
  return real(std::move(name), -kMost, kMost);
}

ScalarSpec ScalarSpec::positive(std::string name) {
  return real(std::move(name), std::numeric_limits<float>::denorm_min(),
              std::numeric_limits<float>::max());
}

ScalarSpec ScalarSpec::word(std::string name, std::vector<std::string_view> words) {
  return {.name = std::move(name), .kind = Kind::kWord, .words = std::move(words)};
}

ScalarSpec ScalarSpec::row_gap(std::string name) {
  return integer(std::move(name), 0, limits::kRowGap).or_none();
}

ScalarSpec ScalarSpec::or_none() && {
  optional = true;
  return std::move(*this);
}

ScalarSpec ScalarSpec::of(std::string_view the_variant) && {
  variant = the_variant;
  return std::move(*this);
}

void check_inputs(const Stage& stage, const Case& item) {
  Check(stage, item).run();
}

void require_contract_fp8(const Case& item, std::initializer_list<const char*> inputs) {
  const DType fp8 = fp8_dtype(item.contract);
  for (const char* name : inputs)
    if (item.input(name).type() != fp8)
      refuse("{}: {} is {}, must be {} as the contract encodes", item.stage, name,
             dtype_name(item.input(name).type()), dtype_name(fp8));
}

void require_page16_caches(std::string_view stage, const KvPageShape& shape) {
  constexpr std::int64_t kPage = 16, kBlock = 128;
  if (shape.page_size != kPage || shape.block_size != kBlock)
    refuse("{}: k_cache has blocks of {} keys in pages of {}, must have {} in pages of {}", stage,
           shape.block_size, shape.page_size, kBlock, kPage);
}

void check_outputs(std::string_view stage, std::span<const OutputSpec> specs) {
  std::int64_t bytes = 0;
  for (const OutputSpec& spec : specs) {
    if (!spec.starts_as.empty()) continue;
    const auto size = static_cast<std::int64_t>(dtype_size(spec.type));
    if (spec.layout.stored() > (limits::kOutputBytes - bytes) / size)
      refuse("{}: output {} has {} elements of {} bytes, the limit for all outputs is {} bytes",
             stage, spec.name, spec.layout.stored(), size, limits::kOutputBytes);
    bytes += spec.layout.stored() * size;
  }
}

namespace {

/// Calls a function of a stage; a refusal of something that the stage is made of gets its name too.
template <class Call>
auto in_the_name_of(std::string_view stage, Call call) {
  try {
    return call();
  } catch (const Refusal& refusal) {
    if (std::string_view(refusal.what()).starts_with(fmt::format("{}: ", stage))) throw;
    refuse("{}: {}", stage, refusal.what());
  }
}

}  // namespace

Stage with_checked_inputs(Stage stage) {
  Stage bare;
  bare.name = stage.name;
  bare.dimensions = stage.dimensions;
  bare.inputs = stage.inputs;
  bare.sizes = stage.sizes;
  bare.scalars = stage.scalars;
  bare.variant = stage.variant;
  stage.outputs = [bare = std::move(bare), inner = std::move(stage.outputs)](const Case& item) {
    if (!bare.inputs.empty()) check_inputs(bare, item);
    auto specs = in_the_name_of(bare.name, [&] { return inner(item); });
    check_outputs(bare.name, specs);
    return specs;
  };
  stage.reference = [name = stage.name, inner = std::move(stage.reference)](const Case& item,
                                                                            Outputs& out) {
    in_the_name_of(name, [&] { inner(item, out); });
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
  return ranged_parameter(item, key, 0, 1) == 1;
}

std::int64_t row_gap(const Case& item, const std::string& key) {
  if (item.integer_or(key, 0) == 0) return 0;
  return ranged_parameter(item, key, 0, limits::kRowGap);
}

}  // namespace monoref
