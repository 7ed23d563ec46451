// The parts of stage indexer_metadata_build: its generator, the reference's view of its cases, and
// its properties.
#pragma once

#include "fuzz/stage.hpp"
#include "reference/stages/indexer_metadata_build.hpp"

namespace monoref {

std::vector<Dimension> indexer_metadata_dimensions();
Case build_indexer_metadata_case(const Params& params, const Contract& contract,
                                 std::uint64_t seed);

/// `supertile_k_setting` of a case whose setting is not set; without the scalar there is no B12X.
inline constexpr std::int64_t kSupertileUnset = -1;

/// What a case says of the builder and of the step. The batch's views point into the case.
IndexerConfig indexer_config_of(const Case& item);
IndexerBatch indexer_batch_of(const Case& item);

std::vector<Property> indexer_metadata_properties();

}  // namespace monoref
