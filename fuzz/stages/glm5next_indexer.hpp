// The two halves of stage glm5next_indexer that have kernels. A case is of one `part`: "decode" (a
// ragged batch regrouped, lengths of the top-k rows, rows of short contexts), "pools" (selected
// pools expanded to tokens), or "workspace" (shapes of workspaces and cache views).
#pragma once

#include "fuzz/stage.hpp"

namespace monoref {

/// The functions of a stage for cases of one part.
struct StagePart {
  Case (*build)(const Params& params, std::uint64_t seed);
  std::vector<OutputSpec> (*outputs)(const Case& item);
  void (*reference)(const Case& item, Outputs& out);
  void (*launch)(const Case& item, const Launcher& launcher);  ///< null: nothing to launch
  std::vector<Property> properties;                            ///< asked of cases of this part only
};

StagePart glm5next_decode_part();
StagePart glm5next_pools_part();
StagePart glm5next_workspace_part();

/// Recorded cases of each part.
Case adopt_glm5next_decode(const RecordedCase& recorded);
Case adopt_glm5next_pools(const RecordedCase& recorded);
Case adopt_glm5next_workspace(const RecordedCase& recorded);

}  // namespace monoref
