// From a recorded case of the indexer stages to the stage's input, and from the stage's output to
// tensors and scalars under the names that the recordings use.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "golden/recording.hpp"
#include "reference/glm5next_expand_pools.hpp"
#include "reference/glm5next_indexer.hpp"
#include "reference/indexer_metadata_build.hpp"
#include "reference/prefill_chunk_split.hpp"

namespace monoref {

struct NamedInteger {
  std::string name;
  std::int64_t value = 0;
};

/// All that a stage gave for one case, in the recordings' names.
struct StageOutputs {
  std::vector<NamedTensor> tensors;
  std::vector<NamedInteger> scalars;
};

/// Builder input of one recorded case. Views point into the recorded case; `local_seq_lens_cpu`
/// holds the host shadow of the local lengths, which the recorder computed and did not store.
struct RecordedIndexerInput {
  IndexerConfig config;
  IndexerBatch batch;
  std::unique_ptr<std::vector<std::int32_t>> local_seq_lens_cpu;
};

/// Cases of indexer_metadata, and with `supertile_k_setting` of indexer_metadata_b12x.
RecordedIndexerInput indexer_input(const RecordedCase& recorded);

/// The outputs as recorded, except that decode_block_table has the columns of the source table
/// only: what the original writes behind them is not specified.
StageOutputs indexer_outputs(const IndexerConfig& config, const IndexerBatch& batch,
                             const IndexerMetadata& metadata);

/// A recorded output in the form in which `indexer_outputs` gives it.
Tensor comparable_indexer_output(const RecordedCase& recorded, const std::string& name);

/// Scalars of a recorded builder case that describe its input; all others are outputs.
bool is_indexer_parameter(const std::string& name);

PrefillChunkSplitInput prefill_chunk_split_input(const RecordedCase& recorded);
StageOutputs prefill_chunk_split_outputs(const std::vector<PrefillChunk>& chunks);

/// Runs every helper of glm5next_indexer that the case has inputs for.
StageOutputs run_glm5next_indexer(const RecordedCase& recorded);

ExpandPoolsInput expand_pools_input(const RecordedCase& recorded);
StageOutputs run_expand_pools(const RecordedCase& recorded);

}  // namespace monoref
