// The registry: one line a stage, in the order of the decode step. Each is made by the function
// `NAME_stage()` in fuzz/stages/NAME.cpp.
#include "fuzz/inputs.hpp"
#include "fuzz/launch_choice.hpp"
#include "fuzz/stage.hpp"

#define MONOREF_STAGES(stage)                                                                   \
  stage(token_rows) stage(sparse_block_table) stage(page16_rebase) stage(kv_page_address)       \
      stage(index_cache_insert) stage(residual_norm_quant) stage(qkv_projection)                \
          stage(qk_norm_rope) stage(kv_cache_insert) stage(index_score) stage(index_select)     \
              stage(fp8_attention_partition) stage(attention_merge) stage(row_quant)            \
                  stage(o_projection) stage(sparse_attention) stage(all_reduce) stage(router)   \
                      stage(moe_route) stage(mx_quant) stage(expert_up_gate) stage(expert_down) \
                          stage(sparse_layer) stage(final_norm) stage(auxiliary_state)          \
                              stage(step_counter) stage(decode_step)                            \
                                  stage(context_parallel_lengths) stage(decode_expand)          \
                                      stage(compressed_slot_mapping) stage(prefill_chunk_split) \
                                          stage(prefill_chunk_metadata)                         \
                                              stage(indexer_metadata_build)                     \
                                                  stage(glm5next_indexer)

namespace monoref {

#define MONOREF_DECLARE(name) Stage name##_stage();
MONOREF_STAGES(MONOREF_DECLARE)

const std::vector<Stage>& all_stages() {
#define MONOREF_CALL(name) \
  with_launch_dimensions(with_checked_contract(with_checked_inputs(name##_stage()))),
  static const std::vector<Stage> stages{MONOREF_STAGES(MONOREF_CALL)};
  return stages;
}

}  // namespace monoref
