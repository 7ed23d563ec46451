// The judged kinds of recordings: one line each.
#include "fuzz/judges/judge.hpp"

namespace monoref {

void judge_gemma_rmsnorm(const RecordedCase& recorded, RunResult& result);
void judge_swiglu_oai(const RecordedCase& recorded, RunResult& result);
void judge_qknorm_rope_kv_insert(const RecordedCase& recorded, RunResult& result);

const std::vector<RecordingJudge>& recording_judges() {
  static const std::vector<RecordingJudge> judges{
      {"gemma_rmsnorm", "residual_norm_quant",
       "any order of the sum; square root and division of 2 ulps, flushing", judge_gemma_rmsnorm},
      {"swiglu_oai", "swiglu", "exp2 and division of 2 ulps, flushing; either association",
       judge_swiglu_oai},
      {"qknorm_rope_kv_insert", "qk_norm_rope, kv_cache_insert",
       "any order of the sum; rsq of 2 ulps, flushing; any contraction",
       judge_qknorm_rope_kv_insert},
  };
  return judges;
}

}  // namespace monoref
