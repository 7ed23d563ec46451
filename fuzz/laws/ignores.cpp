#include "fuzz/laws/ignores.hpp"

#include <algorithm>
#include <limits>

#include "reference/formats/float_format.hpp"

namespace monoref::laws {
namespace {

/// What an element that nobody looks at becomes; `turn` counts them.
std::uint64_t poison(DType type, std::uint64_t old, std::int64_t turn) {
  switch (type) {
    case DType::kFloat32:
      return 0x7FC00000;
    case DType::kBFloat16:
      return 0x7FC0;
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E4M3FNUZ:
      return float_format(type).canonical_nan();
    case DType::kInt32:
      return turn % 2 == 0 ? 0xFFFFFFFFu : 0x7FFFFFFFu;
    case DType::kInt64:
      return turn % 2 == 0 ? ~std::uint64_t{0} : ~std::uint64_t{0} >> 1;
    default:
      return old ^ 0xC7;
  }
}

/// Whether an element was poisoned.
bool poison_where(Tensor& tensor, const Region& where) {
  const Layout layout = tensor.layout();
  std::int64_t turn = 0;
  each_element(layout, [&](Index index, std::int64_t offset) {
    if (where && !where(index)) return;
    put_bits(tensor, offset, poison(tensor.type(), bits_at(tensor, offset), turn++));
  });
  return turn > 0;
}

}  // namespace

Property unchanged(std::string name, std::string statement, std::vector<Variant> variants,
                   Sameness same) {
  return property(
      std::move(name), std::move(statement),
      [variants = std::move(variants), same = std::move(same)](
          const Case& item, const Outputs& out,
          const Evaluate& evaluate) -> std::optional<std::string> {
        const OutputRegion compared = same.compared ? same.compared(item, out) : nullptr;
        for (const Variant& variant : variants) {
          const auto other = variant(item);
          if (!other) continue;
          if (const auto at = first_difference(out, evaluate(*other), same.outputs, compared))
            return *at + " changes";
        }
        return std::nullopt;
      });
}

Property ignores(std::string name, std::string statement, std::vector<Ignored> ignored,
                 Sameness same) {
  return unchanged(
      std::move(name), std::move(statement),
      {[ignored = std::move(ignored)](const Case& item) { return poisoned(item, ignored); }},
      std::move(same));
}

Property of_variant(Variant variant, Property property) {
  const auto check = property.check;
  property.check = [variant = std::move(variant), check](
                       const Case& item, const Outputs&,
                       const Evaluate& evaluate) -> std::optional<std::string> {
    const auto other = variant(item);
    return other ? check(*other, evaluate(*other), evaluate) : std::nullopt;
  };
  return property;
}

std::optional<Case> poisoned(const Case& item, const std::vector<Ignored>& ignored) {
  Case other = item;
  bool changed = false;
  for (const Ignored& what : ignored)
    for (NamedTensor& input : other.inputs)
      if (input.name == what.input)
        changed |= poison_where(input.tensor, what.where ? what.where(item) : nullptr);
  return changed ? std::optional(std::move(other)) : std::nullopt;
}

Variant with_scalar(std::string name, Scalar value) {
  return [name = std::move(name), value = std::move(value)](const Case& item) {
    std::optional<Case> other;
    for (std::size_t i = 0; i < item.scalars.size(); ++i)
      if (item.scalars[i].name == name) {
        other = item;
        other->scalars[i].value = value;
      }
    return other;
  };
}

Variant exchanged(std::string a, std::string b) {
  return [a = std::move(a), b = std::move(b)](const Case& item) -> std::optional<Case> {
    Case other = item;
    for (NamedTensor& input : other.inputs)
      if (input.name == a || input.name == b) input.tensor = item.input(input.name == a ? b : a);
    return other;
  };
}

}  // namespace monoref::laws
