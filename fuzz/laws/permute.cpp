#include "fuzz/laws/permute.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace monoref::laws {
namespace {

std::int64_t run_of(const Axis& axis, const Case& item) {
  return axis.run == nullptr ? 1 : axis.run(item);
}

std::int64_t parts_of(const Independence& about, const Case& item) {
  const Axis& first = about.inputs.front();
  return item.input(std::string(first.tensor)).dim(first.axis) / run_of(first, item);
}

std::vector<Axis> outputs_of(const Independence& about, const Outputs& out) {
  if (!about.outputs.empty()) return about.outputs;
  std::vector<Axis> all;
  for (const NamedTensor& named : out)
    all.push_back({named.name, 0, about.inputs.empty() ? nullptr : about.inputs.front().run});
  return all;
}

Case variant_of(const Independence& about, const Case& item, const Parts& order) {
  if (about.variant != nullptr) return about.variant(item, order);
  Case other = item;
  for (NamedTensor& input : other.inputs)
    for (const Axis& axis : about.inputs)
      if (input.name == axis.tensor)
        input.tensor = chosen(input.tensor, axis.axis, order, run_of(axis, item));
  if (about.adjust != nullptr) about.adjust(other, std::ssize(order));
  return other;
}

/// Where a variant has the parts of a case; -1 for those it has not.
struct Places {
  std::vector<std::int64_t> to;
  std::size_t axis;
  std::int64_t run;

  Places(const Parts& order, bool follow, std::size_t the_axis, std::int64_t the_run)
      : to(order.empty() ? 0 : static_cast<std::size_t>(*std::ranges::max_element(order)) + 1, -1),
        axis(the_axis),
        run(the_run) {
    for (std::size_t i = 0; i < order.size(); ++i)
      to[static_cast<std::size_t>(order[i])] = follow ? static_cast<std::int64_t>(i) : order[i];
  }

  std::int64_t part(Index index) const { return index[axis] / run; }
  /// Where an element is in the variant; -1 if it is not.
  std::int64_t moved(Index index) const {
    const std::int64_t old = part(index);
    if (old >= std::ssize(to) || to[static_cast<std::size_t>(old)] < 0) return -1;
    return to[static_cast<std::size_t>(old)] * run + index[axis] % run;
  }
};

/// The first element of an output that a variant has otherwise: its place.
std::optional<std::string> broken_at(std::string_view name, const Tensor& before,
                                     const Tensor& after, const Places& places,
                                     const OutputRegion& compared) {
  std::optional<std::string> found;
  const auto& strides = after.layout().strides;
  each_element(before.layout(), [&](Index index, std::int64_t offset) {
    const std::int64_t moved = places.moved(index);
    if (found || moved < 0 || (compared && !compared(name, index))) return;
    std::int64_t other = 0;
    bool there = true;
    for (std::size_t axis = 0; axis < index.size(); ++axis) {
      const std::int64_t at = axis == places.axis ? moved : index[axis];
      there = there && at < after.dim(axis);
      other += at * strides[axis];
    }
    if (!there || bits_at(before, offset) != bits_at(after, other)) found = place_of(name, index);
  });
  return found;
}

Property independence(Independence about, std::string when) {
  return property(
      std::move(about.name), std::move(about.statement),
      [about, when = std::move(when)](const Case& item, const Outputs& out,
                                      const Evaluate& evaluate) -> std::optional<std::string> {
        if (about.applies && !about.applies(item)) return std::nullopt;
        const Parts order = about.order(item);
        if (order.empty()) return std::nullopt;
        const Outputs other = evaluate(variant_of(about, item, order));
        const OutputRegion compared = about.compared ? about.compared(item, out) : nullptr;
        for (const Axis& axis : outputs_of(about, out)) {
          const Places places(order, about.outputs_follow, axis.axis, run_of(axis, item));
          if (const auto place = broken_at(axis.tensor, output(out, axis.tensor),
                                           output(other, axis.tensor), places, compared))
            return fmt::format("{} changes {}", *place, when);
        }
        return std::nullopt;
      });
}

Independence along_axis_0(std::string_view part, std::initializer_list<std::string_view> inputs) {
  Independence about{.part = part, .inputs = {}};
  for (const std::string_view input : inputs) about.inputs.push_back({input});
  return about;
}

}  // namespace

Property permute(Independence about) {
  const std::string part(about.part);
  if (about.name.empty()) about.name = part + "_independence";
  if (about.statement.empty())
    about.statement = fmt::format("{0}s in another order are the same {0}s", part);
  if (!about.order)
    about.order = [about](const Case& item) {
      Parts all(static_cast<std::size_t>(parts_of(about, item)));
      std::iota(all.rbegin(), all.rend(), std::int64_t{0});
      return all;
    };
  return independence(std::move(about), fmt::format("when {}s change places", part));
}

Property alone(Independence about) {
  const std::string part(about.part);
  if (about.name.empty()) about.name = part + "_alone";
  if (about.statement.empty())
    about.statement = fmt::format("a {} alone is the same as among others", part);
  if (!about.order)
    about.order = [about](const Case& item) {
      const std::int64_t parts = parts_of(about, item);
      return parts < 2 ? Parts{} : Parts{parts / 2};
    };
  return independence(std::move(about), fmt::format("when the {} is alone", part));
}

Property permute(std::string_view part, std::initializer_list<std::string_view> inputs) {
  return permute(along_axis_0(part, inputs));
}

Property alone(std::string_view part, std::initializer_list<std::string_view> inputs) {
  return alone(along_axis_0(part, inputs));
}

Tensor chosen(const Tensor& tensor, std::size_t axis, const Parts& order, std::int64_t run) {
  std::vector<std::int64_t> dims = tensor.dims();
  dims[axis] = std::ssize(order) * run;
  Tensor made(tensor.type(), Layout::dense(std::move(dims)));
  each_element(made.layout(), [&](Index index, std::int64_t offset) {
    std::int64_t from = 0;
    for (std::size_t a = 0; a < index.size(); ++a) {
      const std::int64_t at =
          a == axis ? order[static_cast<std::size_t>(index[a] / run)] * run + index[a] % run
                    : index[a];
      from += at * tensor.layout().strides[a];
    }
    put_bits(made, offset, bits_at(tensor, from));
  });
  return made;
}

}  // namespace monoref::laws
