// The registry: the stages of fuzz/stages.inc, checked, with the faults planted in their kernels.
#include <algorithm>
#include <iterator>
#include <utility>

#include "fuzz/inputs.hpp"
#include "fuzz/launch_choice.hpp"
#include "fuzz/stage.hpp"

namespace monoref {

#define MONOREF_STAGE(name) Stage name##_stage();
#include "fuzz/stages.inc"
#undef MONOREF_STAGE

namespace {

Stage registered(Stage stage) {
  std::ranges::copy_if(device::planted_faults(), std::back_inserter(stage.mutants),
                       [&](const Mutant& mutant) { return mutant.is_of(stage.name); });
  return with_launch_dimensions(with_checked_contract(with_checked_inputs(std::move(stage))));
}

}  // namespace

const std::vector<Stage>& all_stages() {
#define MONOREF_STAGE(name) registered(name##_stage()),
  static const std::vector<Stage> stages{
#include "fuzz/stages.inc"
  };
#undef MONOREF_STAGE
  return stages;
}

}  // namespace monoref
