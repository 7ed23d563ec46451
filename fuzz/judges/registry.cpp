// The judged kinds of recordings: one line each.
#include "fuzz/judges/judge.hpp"

namespace monoref {

void judge_gemma_rmsnorm(const RecordedCase& recorded, RunResult& result);
void judge_swiglu_oai(const RecordedCase& recorded, RunResult& result);
void judge_qknorm_rope_kv_insert(const RecordedCase& recorded, RunResult& result);
void judge_formats(const RecordedCase& recorded, RunResult& result);
void judge_e8m0_and_fp4(const RecordedCase& recorded, RunResult& result);
void judge_mxfp8_quantize(const RecordedCase& recorded, RunResult& result);
void judge_weight_layouts(const RecordedCase& recorded, RunResult& result);
void judge_hopper_mma(const RecordedCase& recorded, RunResult& result);
void judge_hopper_wgmma(const RecordedCase& recorded, RunResult& result);
void judge_gpu_functions(const RecordedCase& recorded, RunResult& result);
void judge_index_topk_decode(const RecordedCase& recorded, RunResult& result);
void judge_sparse_attention_decode(const RecordedCase& recorded, RunResult& result);
void judge_mxfp8_moe(const RecordedCase& recorded, RunResult& result);
void judge_moe_route(const RecordedCase& recorded, RunResult& result);
void judge_biased_topk_torch(const RecordedCase& recorded, RunResult& result);

const std::vector<RecordingJudge>& recording_judges() {
  static const std::vector<RecordingJudge> judges{
      {"gemma_rmsnorm", "residual_norm_quant",
       "any order of the sum; square root and division of 2 ulps, flushing", judge_gemma_rmsnorm},
      {"swiglu_oai", "swiglu", "exp2 and division of 2 ulps, flushing; either association",
       judge_swiglu_oai},
      {"qknorm_rope_kv_insert", "qk_norm_rope, kv_cache_insert",
       "any order of the sum; rsq of 2 ulps, flushing; any contraction",
       judge_qknorm_rope_kv_insert},
      {"formats", "formats", "overflow to Inf, or to NaN where there is no Inf", judge_formats},
      {"e8m0_and_fp4", "mx_quant", "the four scale modes of the recording", judge_e8m0_and_fp4},
      {"mxfp8_quantize", "mx_quant", "rule d for torch, rule e for Triton", judge_mxfp8_quantize},
      {"weight_layouts", "weight layouts", "bytes", judge_weight_layouts},
      {"hopper_mma", "dot", "profile hopper-mma", judge_hopper_mma},
      {"hopper_wgmma", "dot", "profile hopper-wgmma", judge_hopper_wgmma},
      {"gpu_functions", "portable functions", "ex2 2, rcp 1, rsqrt 2 ulps, flushing; .rn exact",
       judge_gpu_functions},
      {"index_topk_decode", "index_score, index_select",
       "vllm-triton: any order of the dots, 25-bit matrix units; ids where scores are apart",
       judge_index_topk_decode},
      {"sparse_attention_decode", "sparse_attention",
       "vllm-triton: any order of every sum, 25-bit matrix units; exp2 and division of 2 ulps,"
       " log2 of 2^-22, flushing; any dealing of the keys",
       judge_sparse_attention_decode},
      {"mxfp8_moe", "mx_quant, expert_up_gate, swiglu, expert_down",
       "rule e; each stage from its recorded input: any order of the dots, 25-bit matrix units;"
       " exp2 and division of 2 ulps, flushing",
       judge_mxfp8_moe},
      {"moe_route", "moe_route",
       "binary64 beside ours; ids where keys are apart, by plain keys and by packed ones",
       judge_moe_route},
      {"biased_topk_torch", "moe_route",
       "any order of the sum; exp2 and division of 2 ulps, flushing; ids where keys are apart, in"
       " any order",
       judge_biased_topk_torch},
  };
  return judges;
}

}  // namespace monoref
