#include "fuzz/laws/untouched.hpp"

#include <algorithm>

namespace monoref::laws {
namespace {

/// The first element that changed outside of the region, or a change of padding.
std::optional<std::string> touched(std::string_view name, const Tensor& before, Tensor after,
                                   const OutputRegion& may_change) {
  std::optional<std::string> found;
  const Layout layout = after.layout();
  each_element(layout, [&](Index index, std::int64_t offset) {
    const std::uint64_t old = bits_at(before, offset);
    if (found || bits_at(after, offset) == old) return;
    if (may_change(name, index))
      put_bits(after, offset, old);  // what is left must be what was there
    else
      found = place_of(name, index);
  });
  if (!found && after.image() != before.image()) found = fmt::format("the padding of {}", name);
  return found;
}

}  // namespace

Property untouched(std::string name, std::string statement, std::vector<InPlace> outputs,
                   std::function<OutputRegion(const Case&)> may_change) {
  return property(
      std::move(name), std::move(statement),
      [outputs = std::move(outputs), may_change = std::move(may_change)](
          const Case& item, const Outputs& out, const Evaluate&) -> std::optional<std::string> {
        const OutputRegion region = may_change(item);
        for (const InPlace& place : outputs) {
          const Tensor* before =
              item.find_input(std::string(place.before.empty() ? place.output : place.before));
          const auto after = std::find_if(out.begin(), out.end(), [&](const NamedTensor& named) {
            return named.name == place.output;
          });
          if (before == nullptr || after == out.end()) continue;
          if (auto found = touched(place.output, *before, after->tensor, region))
            return *found + " has changed, nobody names it";
        }
        return std::nullopt;
      });
}

}  // namespace monoref::laws
