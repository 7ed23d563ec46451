// Recordings as nobody recorded them: one thing changed in one case.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "golden/recording.hpp"

namespace monoref::testing {

/// A change of a recorded case, and its name for messages.
struct RecordingMutation {
  std::string name;
  std::function<void(RecordedCase&)> apply;
};

/// Every change of `item` that there is a kind for: parameters to extremes, to other kinds and
/// away; tensors of other types, ranks and dims, with elements to extremes and away; inputs and
/// outputs alike. Elements that are changed lie where `seed` says.
std::vector<RecordingMutation> mutations_of(const RecordedCase& item, std::uint64_t seed);

}  // namespace monoref::testing
