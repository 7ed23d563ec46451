// Recorded builder cases as cases of stage indexer_metadata_build.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "golden/case.hpp"
#include "golden/recording.hpp"

namespace monoref {

/// Scalars of a step, each an output of one number.
inline constexpr std::array<std::string_view, 9> kStepScalars{
    "num_decodes",        "num_prefills",        "num_decode_tokens",
    "num_prefill_tokens", "use_flattening",      "max_prefill_buffer_size",
    "decode_max_seq_len", "decode_active_width", "decode_requires_padding"};
/// Scalars of a chunk, each an output of one number a chunk.
inline constexpr std::array<std::string_view, 5> kChunkScalars{
    "num_reqs", "total_seq_lens", "token_start", "token_end", "skip_kv_gather"};
/// Arrays of a chunk, those of all chunks one behind the other in one output.
inline constexpr std::array<std::string_view, 5> kChunkArrays{
    "block_table", "cu_seqlen_ks", "cu_seqlen_ke", "cu_seq_lens", "token_to_seq"};
/// The output that holds a scalar or an array of all chunks.
std::string chunk_output(std::string_view name);

/// A case of recordings indexer_metadata and indexer_metadata_b12x, with everything that was
/// recorded as an expected output; refuses a recorded name that has no place.
///
/// The recorder's host shadow of local lengths is not stored: it is computed. Table columns behind
/// the source table are unspecified: the original copies there whatever lies behind the source row.
Case adopt_indexer_metadata(const Recording& recording, const RecordedCase& recorded);

}  // namespace monoref
