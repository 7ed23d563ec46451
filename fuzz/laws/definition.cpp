#include "fuzz/laws/definition.hpp"

#include "fuzz/random.hpp"
#include "fuzz/runner.hpp"

namespace monoref::laws {

bool is_sampled(std::uint64_t seed, std::int64_t work) {
  return work <= kSmallWork || CounterRandom(seed, "definition").below(work) < kSmallWork;
}

Property definition(Definition about) {
  Stage by_definition;
  by_definition.outputs = about.outputs;
  by_definition.reference = about.define;
  return property("definition", "the fast form is the scalar definition",
                  [about, by_definition](const Case& item, const Outputs& out,
                                         const Evaluate&) -> std::optional<std::string> {
                    if (!is_sampled(item.seed, about.work(item))) return std::nullopt;
                    const Outputs scalar = run_reference(by_definition, item, about.outputs(item));
                    if (const auto at = first_difference(scalar, out)) return *at + " is another";
                    return std::nullopt;
                  });
}

}  // namespace monoref::laws
