// The most that a case may ask for, in one place. A case may come from a file, and every number in
// it be anybody's: each is held against one of these before anything is allocated or looped over.
// None refuses what the model has at full size, what a recording holds or what a generator draws.
#pragma once

#include <cstdint>

namespace monoref::limits {

/// Extent of an axis: kernels count in 32 bits.
inline constexpr std::int64_t kExtent = 2147483647;
/// Extent of an axis beside an empty one: nothing is stored there, so that a file of any size can
/// claim as many; loops over such rows must still end.
inline constexpr std::int64_t kEmptyExtent = std::int64_t{1} << 20;
/// Elements between two rows of an output, of which every row has some: a handful shows a wrong
/// stride.
inline constexpr std::int64_t kRowGap = 256;
/// Query tokens of a request, and rows of a step where a grid has one block for some of them: a
/// step of the model has 16 rows, a chunk of prefill some thousands.
inline constexpr std::int64_t kQueryLength = 4096;
inline constexpr std::int64_t kTokens = std::int64_t{1} << 18;
/// Heads of a kind and elements of a head, where the stage's rule names no limit: the model has 16
/// heads of 128 on a rank.
inline constexpr std::int64_t kHeads = 1024;
inline constexpr std::int64_t kHeadDim = 1024;
/// Ranks that share something: the model runs on 1, 2, 4 or 8.
inline constexpr std::int64_t kRanks = 8;
/// Elements whose addresses kv_page_address lists: that a cache is a bijection takes a table of
/// them all, and 8,192 slots of the model's head show as much as more.
inline constexpr std::int64_t kAddressedElements = std::int64_t{1} << 20;
/// What the sparse indexers' steps are made of. Ranks that share an indexer's cache, keys in a row
/// on one of them, tokens of a key, and keys of a block: models have 8, 64, 128 and 256.
inline constexpr std::int64_t kCacheRanks = 64;
inline constexpr std::int64_t kInterleave = std::int64_t{1} << 20;
inline constexpr std::int64_t kCompressRatio = std::int64_t{1} << 20;
inline constexpr std::int64_t kStorageBlock = std::int64_t{1} << 17;
/// Key rows of all chunks of a step's prefills: a workspace has 40 times 163,840.
inline constexpr std::int64_t kKeyRows = std::int64_t{1} << 23;
/// Entries of a step's expanded block table: a step of the model has some 10^6.
inline constexpr std::int64_t kTableEntries = std::int64_t{1} << 25;
/// Tokens of a pool of keys: models have 4.
inline constexpr std::int64_t kPoolSize = std::int64_t{1} << 16;
/// Bytes of all outputs of a stage that do not start as an input. The largest of the model's steps
/// have a few million; a comparison holds up to six copies.
inline constexpr std::int64_t kOutputBytes = std::int64_t{1} << 27;

}  // namespace monoref::limits
