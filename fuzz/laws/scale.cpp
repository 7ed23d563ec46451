#include "fuzz/laws/scale.hpp"

#include <algorithm>
#include <cmath>

namespace monoref::laws {
namespace {

/// How numbers of a type are kept: the exponent's place, and how many bits it has.
struct Kind {
  int shift;
  std::uint64_t exponents;  ///< as a mask, at bit 0
  bool has_sign;

  std::uint64_t exponent(std::uint64_t bits) const { return bits >> shift & exponents; }
  bool is_zero(std::uint64_t bits) const {
    return has_sign && (bits & ((exponents << shift) | ((std::uint64_t{1} << shift) - 1))) == 0;
  }
  /// Inf or NaN; E8M0 has a NaN only.
  bool is_special(std::uint64_t bits) const { return exponent(bits) == exponents; }
};

constexpr int kBias = 127;  // of all three

Kind kind_of(std::string_view name, DType type) {
  switch (type) {
    case DType::kFloat32:
      return {23, 0xFF, true};
    case DType::kBFloat16:
      return {7, 0xFF, true};
    case DType::kUInt8:
    case DType::kFloat8E8M0:
      return {0, 0xFF, false};
    default:
      refuse("{} is {}, a law scales binary32, BF16 and E8M0", name, dtype_name(type));
  }
}

/// Multiplies every element; false if one leaves the range.
bool multiply(Tensor& tensor, const Factor& factor) {
  const Kind kind = kind_of(factor.name, tensor.type());
  const auto size = static_cast<std::int64_t>(tensor.element_size());
  for (const Extent& extent : tensor.layout().extents)
    for (std::int64_t at = extent.offset; at < extent.offset + extent.count; ++at) {
      std::uint64_t bits = bits_at(tensor, at);
      if (kind.is_zero(bits) || kind.is_special(bits)) continue;
      const int exponent = static_cast<int>(kind.exponent(bits)) - kBias;
      if (std::min(exponent, exponent + factor.power) < factor.low ||
          std::max(exponent, exponent + factor.power) > factor.high)
        return false;
      bits += static_cast<std::uint64_t>(static_cast<std::int64_t>(factor.power) *
                                         (std::int64_t{1} << kind.shift));
      std::memcpy(tensor.base() + at * size, &bits, static_cast<std::size_t>(size));
    }
  return true;
}

bool multiply(Scalar& value, const Factor& factor) {
  const double old = std::get<double>(value);
  value = std::ldexp(old, factor.power);
  if (old == 0 || !std::isfinite(old)) return true;
  const int exponent = std::ilogb(old);
  return std::min(exponent, exponent + factor.power) >= factor.low &&
         std::max(exponent, exponent + factor.power) <= factor.high;
}

std::optional<Case> multiplied(const Case& item, const std::vector<Factor>& factors) {
  Case other = item;
  bool changed = false;
  for (const Factor& factor : factors) {
    for (NamedTensor& input : other.inputs) {
      if (input.name != factor.name) continue;
      if (!multiply(input.tensor, factor)) return std::nullopt;
      changed = changed || factor.power != 0;
    }
    for (NamedScalar& scalar : other.scalars) {
      if (scalar.name != factor.name) continue;
      if (!multiply(scalar.value, factor)) return std::nullopt;
      changed = changed || factor.power != 0;
    }
  }
  return changed ? std::optional(std::move(other)) : std::nullopt;
}

/// The first normal element of an output that is not multiplied: its place.
std::optional<std::string> not_multiplied(const Factor& factor, const Tensor& before,
                                          const Tensor& after, const OutputRegion& compared) {
  const Kind kind = kind_of(factor.name, before.type());
  std::optional<std::string> found;
  each_element(before.layout(), [&](Index index, std::int64_t offset) {
    if (found || (compared && !compared(factor.name, index))) return;
    const std::uint64_t bits = bits_at(before, offset);
    const auto exponent = static_cast<int>(kind.exponent(bits));
    const int moved = exponent + factor.power;
    const int least = kind.has_sign ? 1 : 0;  // E8M0 has no subnormals
    if (exponent < least || kind.is_special(bits) || moved < least || moved >= 0xFF) return;
    const auto expected =
        bits + static_cast<std::uint64_t>(static_cast<std::int64_t>(factor.power) *
                                          (std::int64_t{1} << kind.shift));
    if (bits_at(after, offset) != expected) found = place_of(factor.name, index);
  });
  return found;
}

std::string times(const Factor& factor) {
  if (factor.power == 0) return std::string(factor.name);
  if (factor.power == 1) return fmt::format("twice {}", factor.name);
  if (factor.power == -1) return fmt::format("half {}", factor.name);
  return fmt::format("2^{} times {}", factor.power, factor.name);
}

std::string statement_of(const Scaling& about) {
  std::vector<std::string> in;
  std::vector<std::string> out;
  for (const Factor& factor : about.inputs)
    if (factor.power != 0) in.push_back(times(factor));
  for (const Factor& factor : about.outputs) out.push_back(times(factor));
  return fmt::format("{} is {}", fmt::join(in, " and "),
                     out.empty() ? "the same" : fmt::format("{}", fmt::join(out, " and ")));
}

std::string name_of(const Scaling& about) {
  std::vector<std::string_view> names;
  for (const Factor& factor : about.inputs)
    if (factor.power != 0) names.push_back(factor.name);
  return fmt::format("{}_scaling", fmt::join(names, "_"));
}

std::optional<std::string> broken(const Scaling& about, const Case& item, const Outputs& out,
                                  const Evaluate& evaluate) {
  if (about.applies && !about.applies(item)) return std::nullopt;
  const auto other = multiplied(item, about.inputs);
  if (!other) return std::nullopt;
  const Outputs after = evaluate(*other);
  const OutputRegion compared = about.compared ? about.compared(item, out) : nullptr;
  std::vector<std::string_view> same;
  for (const NamedTensor& named : out) {
    const auto factor = std::find_if(about.outputs.begin(), about.outputs.end(),
                                     [&](const Factor& known) { return known.name == named.name; });
    if (factor == about.outputs.end() || factor->power == 0)
      same.push_back(named.name);
    else if (auto at = not_multiplied(*factor, named.tensor, output(after, named.name), compared))
      return *at + " is otherwise";
  }
  if (same.empty()) return std::nullopt;
  if (auto at = first_difference(out, after, same, compared)) return *at + " is another";
  return std::nullopt;
}

}  // namespace

Property scale(Scaling about) {
  std::string name = about.name.empty() ? name_of(about) : about.name;
  std::string statement = statement_of(about);
  return property(
      std::move(name), std::move(statement),
      [about = std::move(about)](const Case& item, const Outputs& out, const Evaluate& evaluate) {
        return broken(about, item, out, evaluate);
      });
}

}  // namespace monoref::laws
