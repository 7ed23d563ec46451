#include "fuzz/laws/adds_up.hpp"

#include "fuzz/laws/ignores.hpp"
#include "fuzz/stages/indexer_content.hpp"

namespace monoref::laws {
namespace {

std::optional<std::string> broken_sum(const Case& item, std::string_view name,
                                      const Evaluate& evaluate) {
  const std::int64_t world = item.integer("world");
  Case other = item;
  std::vector<std::int64_t> sums;
  for (std::int64_t rank = 0; rank < world; ++rank) {
    set_scalar(other, "rank", rank);
    const auto share = numbers_of(output(evaluate(other), name));
    sums.resize(share.size());
    for (std::size_t i = 0; i < share.size(); ++i) sums[i] += share[i];
  }
  set_scalar(other, "world", std::int64_t{1});
  set_scalar(other, "rank", std::int64_t{0});
  const auto whole = numbers_of(output(evaluate(other), name));
  for (std::size_t i = 0; i < sums.size(); ++i)
    if (sums[i] != whole[i])
      return fmt::format("{}[{}] adds up to {} over {} ranks, one rank alone has {}", name, i,
                         sums[i], world, whole[i]);
  return std::nullopt;
}

}  // namespace

Property adds_up(std::vector<std::string_view> outputs, std::string statement,
                 std::function<bool(const Case&, const Outputs&)> applies) {
  return property("partition", std::move(statement),
                  [outputs = std::move(outputs), applies = std::move(applies)](
                      const Case& item, const Outputs& out,
                      const Evaluate& evaluate) -> std::optional<std::string> {
                    if (applies && !applies(item, out)) return std::nullopt;
                    for (const std::string_view name : outputs)
                      if (auto found = broken_sum(item, name, evaluate)) return found;
                    return std::nullopt;
                  });
}

Property no_ratio(std::function<bool(const Case&, const Outputs&)> applies) {
  Property law = unchanged("no_ratio", "ratios 0 and 1 are the same (T12)",
                           {[](const Case& item) -> std::optional<Case> {
                             const std::int64_t ratio = item.integer("compress_ratio");
                             if (ratio > 1) return std::nullopt;
                             return with_scalar("compress_ratio", 1 - ratio)(item);
                           }});
  if (!applies) return law;
  law.check = [applies = std::move(applies), check = law.check](
                  const Case& item, const Outputs& out, const Evaluate& evaluate) {
    return applies(item, out) ? check(item, out, evaluate) : std::nullopt;
  };
  return law;
}

}  // namespace monoref::laws
