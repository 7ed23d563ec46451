// index_score: the largest dot of every block's keys with each query row and index head.
//
// Source of the rule: mono-decode section 4, section 10 (order of k, NaN); upstream-semantics
// section 4.1 for the BF16 cache and for scores without a scale.
//
//   dot     one fma chain from 0 over natural k
//   score   the largest dot over the block's keys below the row's context (-inf: there is none; NaN
//           if one of them is NaN; +0 is larger than -0), by option times
//           f32(f32(sm_scale) * f32(log2 e))
//   listed  blocks init .. n_blk - local - 1 of the request's last row, for every row of the
//           request; none if that row has no more than topk blocks
//
// Work. The q_len rows and heads of a request are columns of one pass over its keys. A block of 128
// threads takes one block of keys at a time. The keys are loaded 16 bytes a lane, coalesced, one
// step ahead of their use, and redistributed through shared memory, 128 bytes of each key at a
// time; the columns are staged there as binary32. With up to 4 columns a thread has one key and all
// of them; with more it has two keys and half of the columns, since reads of the columns from
// shared memory are the bottleneck then.

#include <cstdint>

#include "device/kernels/arithmetic.hpp"
#include "device/kernels/e4m3_words.hpp"
#include "device/kernels/float_order.hpp"
#include "device/kernels/number_formats.hpp"
#include "device/kernels/page_layout.hpp"
#include "device/kernels/registers.hpp"
#include "device/kernels/step_tables.hpp"
#include "device/kernels/vector_access.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {

constexpr int kThreads = kBlockTokens;
constexpr int kMaxDim = 128;
constexpr int kMaxColumns = 16;  ///< of one pass; more rows and heads are passes of their own
constexpr int kPieceBytes = 128;
constexpr int kPieceVectors = kPieceBytes / kVectorBytes;
/// Distance of two keys in shared memory. 16 bytes of padding, so that lanes that read the same
/// vector of neighbouring keys hit different banks.
constexpr int kStagedKey = kPieceBytes + kVectorBytes;
constexpr int kStagedBytes = kThreads * kStagedKey;
constexpr int kGroupLanes = 32;  ///< that find their maxima together
constexpr int kGroups = kThreads / kGroupLanes;
/// Up to so many columns a thread has one key, and from then on two, this far apart.
constexpr int kOneKeyColumns = 4;
constexpr int kKeysApart = kThreads / 2;
constexpr int kMaxima = kMaxColumns * kGroups;

/// Values of `scaling`.
constexpr std::int32_t kScalingLog2 = 1;

/// How a key is stored.
struct E4m3Keys {
  static constexpr int kElementBytes = 1;
  E4m3 format;

  MONOREF_MEMBER std::uint32_t marks(const simt::Vec16& vector) const {
    return nan_marks(vector, format);
  }
  /// Four numbers of a vector of 16 bytes, number `i` of those in it.
  MONOREF_MEMBER Four four(const simt::Vec16& vector, int i) const {
    return true_values(vector.word[i], format);
  }
};
struct Bf16Keys {
  static constexpr int kElementBytes = 2;

  MONOREF_MEMBER std::uint32_t marks(const simt::Vec16&) const { return 0; }  // they stay NaN
  MONOREF_MEMBER Four four(const simt::Vec16& vector, int i) const {
    Four numbers;
    for (int j = 0; j < 4; ++j)
      numbers.value[j] = float_of_bf16(
          static_cast<std::uint16_t>(vector.word[2 * i + j / 2] >> (j % 2 == 0 ? 0 : 16)));
    return numbers;
  }
};

/// The arguments of a launch.
struct Scoring {
  const std::uint16_t* q;
  std::int64_t q_row_stride;
  std::int64_t q_head_stride;
  const std::uint8_t* cache;
  std::int64_t block_bytes;  ///< from one block to the next
  std::int64_t token_bytes;
  std::int64_t cache_blocks;
  StepTables tables;
  float* scores;
  std::int64_t score_row_stride;
  std::int64_t score_head_stride;
  std::int32_t heads;
  std::int32_t dim;
  std::int32_t topk;
  std::int32_t init;
  std::int32_t local;
  float scale;
  std::int32_t scaling;
  std::int32_t shard_from;
  std::int32_t world;
  std::int32_t rank;
};

/// One pass over the keys of a request: columns first .. first + count - 1 of its q_len * heads,
/// where column c is head c mod heads of row c div heads.
struct Columns {
  std::int64_t first_row;  ///< of the request
  std::int32_t first;
  std::int32_t count;
};

/// The blocks of a request that this block of threads scores: first, first + step, ..., below end.
struct ScoredBlocks {
  const std::int32_t* table;
  std::int32_t context;  ///< of the last row: no key at or behind it is read
  std::int32_t first;
  std::int32_t step;
  std::int32_t end;
};

MONOREF_DEVICE std::int64_t row_of_column(const Scoring& s, const Columns& columns,
                                          std::int32_t c) {
  return columns.first_row + (columns.first + c) / s.heads;
}
MONOREF_DEVICE std::int32_t head_of_column(const Scoring& s, const Columns& columns,
                                           std::int32_t c) {
  return (columns.first + c) % s.heads;
}

/// The smaller of a number and 2^30, which is larger than any block number or step.
MONOREF_DEVICE std::int32_t capped(std::int64_t number) {
  constexpr std::int64_t kBeyond = std::int64_t{1} << 30;
  return static_cast<std::int32_t>(number < kBeyond ? number : kBeyond);
}

/// The share of a request's listed blocks that falls to this block of threads.
MONOREF_DEVICE ScoredBlocks scored_blocks(const Scoring& s, std::int64_t request) {
  const std::int64_t last_row = s.tables.last_row_of(request);
  const auto context = static_cast<std::int32_t>(s.tables.context_of(last_row));
  const auto blocks = static_cast<std::int32_t>(blocks_of_context(context));
  const bool sharded = s.world > 1 && blocks > s.shard_from;
  const std::int32_t world = sharded ? s.world : 1;
  std::int32_t rank = sharded ? s.rank : 0;
  if (MONOREF_FAULT(score_shard_off_by_one, "T19", "a rank scores its neighbour's blocks"))
    rank = (rank + 1) % world;
  // The first listed block of this rank, then every gridDim.x-th of them.
  const std::int32_t listed = s.init + (rank + world - s.init % world) % world;
  const std::int32_t known = blocks < s.tables.width ? blocks : s.tables.width;
  return {s.tables.blocks_of(last_row), context, capped(listed + std::int64_t{world} * blockIdx.x),
          capped(std::int64_t{world} * gridDim.x), blocks > s.topk ? known - s.local : 0};
}

/// Stages the columns in shared memory, as [column][kMaxDim], and the contexts of their rows.
MONOREF_DEVICE void stage_columns(const Scoring& s, const Columns& columns, float* q,
                                  std::int32_t* contexts) {
  const int vectors = s.dim / 8;
  for (int i = static_cast<int>(threadIdx.x); i < columns.count * vectors; i += kThreads) {
    const int column = i / vectors, d = i % vectors * 8;
    const std::uint16_t* from = in_global(s.q) +
                                row_of_column(s, columns, column) * s.q_row_stride +
                                head_of_column(s, columns, column) * s.q_head_stride;
    float values[8];
    load_eight({from, 1}, d, values);
    float* to = q + column * kMaxDim + d;
    store_staged(to, {{values[0], values[1], values[2], values[3]}});
    store_staged(to + 4, {{values[4], values[5], values[6], values[7]}});
  }
  for (int column = static_cast<int>(threadIdx.x); column < columns.count; column += kThreads) {
    std::int64_t row = row_of_column(s, columns, column);
    if (MONOREF_FAULT(score_context_of_last_row, "T19",
                      "every row sees as far as its request's last row"))
      row = s.tables.last_row_of(s.tables.request_of(row));
    std::int64_t context = s.tables.context_of(row);
    if (MONOREF_FAULT(score_future_key_admitted, "S20",
                      "the key behind the row's context takes part"))
      context += 1;
    if (MONOREF_FAULT(score_tail_as_full, "S06", "the last block counts as whole"))
      context = blocks_of_context(context) * kBlockTokens;
    if (MONOREF_FAULT(score_new_keys_unseen, "own", "keys of this step do not take part") &&
        context > s.tables.q_len)
      context -= s.tables.q_len;
    contexts[column] = static_cast<std::int32_t>(context);
  }
}

/// A thread's part of one piece of a block of keys: 16-byte vector threadIdx.x mod 8 of keys
/// threadIdx.x div 8, 16 further, ...
struct PieceVectors {
  simt::Vec16 vector[kPieceVectors];
};

/// Keys of a block that exist, and may be read.
MONOREF_DEVICE std::int32_t keys_of_block(const ScoredBlocks& blocks, std::int32_t block) {
  const std::int32_t left = blocks.context - block * kBlockTokens;
  return left < kBlockTokens ? left : kBlockTokens;
}

/// Loads this thread's part of piece `piece` of a block; zeros for a block behind the last. What
/// does not exist in a key or in the block is replaced by the last that does, so that no load
/// depends on a condition of its lane.
MONOREF_DEVICE PieceVectors load_piece(const Scoring& s, const ScoredBlocks& blocks,
                                       std::int32_t block, std::int32_t piece,
                                       std::int32_t row_bytes) {
  PieceVectors vectors{};
  if (block >= blocks.end) return vectors;
  std::int64_t id = blocks.table[block];
  if (MONOREF_FAULT(score_block_id_is_position, "S11",
                    "the logical block is taken for the physical one"))
    id = block < s.cache_blocks ? block : id;
  if (id < 0 || id >= s.cache_blocks) return vectors;
  std::int64_t offset = id * s.block_bytes;
  if (MONOREF_FAULT(score_block_offset_31_bits, "O02", "offset of a block in 31 bits"))
    offset &= 0x7FFFFFFF;
  auto thread = static_cast<std::int32_t>(threadIdx.x);
  compute_here(thread);  // else the keys' addresses occupy registers that the dots need
  const std::int32_t byte = piece * kPieceBytes + thread % kPieceVectors * kVectorBytes;
  const std::uint8_t* from =
      in_global(s.cache) + offset + (byte < row_bytes ? byte : row_bytes - kVectorBytes);
  const std::int64_t token_bytes = MONOREF_FAULT(score_token_stride_ignored, "P06",
                                                 "keys taken to be as far apart as they are long")
                                       ? row_bytes
                                       : s.token_bytes;
  const std::int32_t keys = keys_of_block(blocks, block);
  for (int i = 0; i < kPieceVectors; ++i) {
    const std::int32_t key = thread / kPieceVectors + i * (kThreads / kPieceVectors);
    vectors.vector[i] = simt::load16(from + (key < keys ? key : keys - 1) * token_bytes);
  }
  return vectors;
}

MONOREF_DEVICE void stage_piece(const PieceVectors& vectors, std::uint8_t* staged) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = 0; i < kPieceVectors; ++i) {
    const int key = thread / kPieceVectors + i * (kThreads / kPieceVectors);
    simt::store16(staged + key * kStagedKey + thread % kPieceVectors * kVectorBytes,
                  vectors.vector[i]);
  }
}

/// The dots of a thread's keys with its columns of a pass.
struct Dots {
  float of[2][kMaxColumns / 2];
  std::uint32_t marks[2];  ///< of NaN among the keys' codes
};

/// A thread's share of a pass: `keys` keys and `columns` columns. All are constants, since dots
/// live in registers.
template <int keys, int columns>
struct Share {
  static constexpr int kKeys = keys;
  static constexpr int kColumns = columns;
  static constexpr int kKeyThreads = kThreads / keys;

  MONOREF_MEMBER static int key() { return static_cast<int>(threadIdx.x) % kKeyThreads; }
  MONOREF_MEMBER static int first_column() {
    return static_cast<int>(threadIdx.x) / kKeyThreads * columns;
  }
};

/// Calls `function` with the smallest share that holds columns 0 .. count - 1. Results of columns
/// from `count` on are discarded.
template <class Function>
MONOREF_DEVICE void with_share(std::int32_t count, const Function& function) {
  if (count == 1)
    function(Share<1, 1>{});
  else if (count <= kOneKeyColumns)
    function(Share<1, kOneKeyColumns>{});
  else
    function(Share<2, kMaxColumns / 2>{});
}

/// Continues the dots of a share by four k. `q` is where those begin in its first column.
template <class S>
MONOREF_DEVICE void add_four(S, const Four (&keys)[S::kKeys], const float* q, Dots* dots) {
  for (int c = 0; c < S::kColumns; ++c) {
    const Four x = load_staged(q + c * kMaxDim);
    for (int n = 0; n < S::kKeys; ++n) {
      float* dot = &dots->of[n][c];
      for (int j = 0; j < 4; ++j) *dot = simt::fma(x.value[j], keys[n].value[j], *dot);
      compute_here(*dot);
    }
  }
}

/// Continues the dots of a share by one 16-byte vector of each of its keys.
template <class Keys, class S>
MONOREF_DEVICE void add_vector(S share, const Keys& keys, const simt::Vec16 (&vector)[S::kKeys],
                               const float* q, Dots* dots) {
  MONOREF_UNROLL
  for (int i = 0; i < kVectorBytes / Keys::kElementBytes / 4; ++i) {
    Four four[S::kKeys];
    for (int n = 0; n < S::kKeys; ++n) four[n] = keys.four(vector[n], i);
    add_four(share, four, q + 4 * i, dots);
  }
}

/// Continues the dots of a share by `vectors` 16-byte vectors of its staged keys, of which
/// `first_key` is the first.
template <class Keys, class S>
MONOREF_DEVICE void add_vectors(S share, const Keys& keys, const std::uint8_t* first_key,
                                const float* q, std::int32_t vectors, Dots* dots) {
  MONOREF_KEEP_LOOP
  for (std::int32_t r = 0; r < vectors; ++r) {
    simt::Vec16 vector[S::kKeys];
    for (int n = 0; n < S::kKeys; ++n) {
      vector[n] = simt::load16(first_key + n * kKeysApart * kStagedKey + r * kVectorBytes);
      dots->marks[n] |= keys.marks(vector[n]);
    }
    add_vector(share, keys, vector, q + r * (kVectorBytes / Keys::kElementBytes), dots);
  }
}

/// The maxima of groups of lanes for the columns of a share, into best[column][group].
/// `first_key` is where the block begins in the sequence.
template <class S>
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE void find_maxima(S, const Dots& dots,
                                                         std::int32_t first_key,
                                                         const std::int32_t* contexts,
                                                         std::int32_t* best) {
  const int group = S::key() / kGroupLanes;
  for (int c = 0; c < S::kColumns; ++c) {
    const int column = S::first_column() + c;
    std::int32_t rank = kLowestRank;
    for (int n = 0; n < S::kKeys; ++n) {
      const float dot = unless_nan(dots.marks[n], dots.of[n][c]);
      if (first_key + S::key() + n * kKeysApart >= contexts[column]) continue;
      if (MONOREF_FAULT(score_nan_dropped, "own", "a NaN key is passed over") && dot != dot)
        continue;
      rank = larger_rank(rank, rank_of(dot));
    }
    if (MONOREF_FAULT(score_maximum_from_zero, "own", "the maximum starts at 0 instead of -Inf"))
      rank = larger_rank(rank, 0);
    rank = largest_rank_of_lanes<kGroupLanes>(rank);
    if (S::key() % kGroupLanes == 0) best[column * kGroups + group] = rank;
  }
}

/// The rank of a column's maximum: of the groups that had its keys.
MONOREF_DEVICE std::int32_t best_of_column(const Columns& columns, const std::int32_t* best,
                                           std::int32_t column) {
  const int groups = columns.count <= kOneKeyColumns ? kGroups : kGroups / 2;
  std::int32_t rank = best[column * kGroups];
  for (int group = 1; group < groups; ++group)
    rank = larger_rank(rank, best[column * kGroups + group]);
  return rank;
}

/// Stores the scores of one block, a column a thread.
MONOREF_DEVICE void store_scores(const Scoring& s, const Columns& columns, std::int32_t block,
                                 const std::int32_t* best) {
  const auto c = static_cast<std::int32_t>(threadIdx.x);
  if (c >= columns.count) return;
  std::int32_t rank = best_of_column(columns, best, c);
  if (MONOREF_FAULT(score_maximum_over_heads, "S10", "heads share one maximum")) {
    const std::int32_t head_0 = c - head_of_column(s, columns, c);
    for (std::int32_t other = head_0; other < head_0 + s.heads; ++other)
      if (other >= 0 && other < columns.count)
        rank = larger_rank(rank, best_of_column(columns, best, other));
  }
  float score = float_of_rank(rank);
  if (s.scaling == kScalingLog2 &&
      !MONOREF_FAULT(score_scale_dropped, "own", "scores are not scaled"))
    score *= MONOREF_FAULT(score_scale_without_log2e, "T21", "the scale lacks log2 e")
                 ? s.scale
                 : s.scale * kLog2E;
  std::int64_t row = row_of_column(s, columns, c);
  std::int64_t head = head_of_column(s, columns, c);
  const std::int64_t token = row - columns.first_row;
  if (MONOREF_FAULT(score_token_and_head_swapped, "S04",
                    "query read as [head, row] instead of [row, head]") &&
      token < s.heads && head < s.tables.q_len) {
    row = columns.first_row + head;
    head = token;
  }
  in_global(s.scores)[row * s.score_row_stride + head * s.score_head_stride + block] =
      canonical(score);
}

/// Shared memory of a block.
struct Workspace {
  std::uint8_t* keys;      ///< [kThreads][kStagedKey]
  float* q;                ///< [columns][kMaxDim], the dynamic shared memory
  std::int32_t* contexts;  ///< [kMaxColumns]
  std::int32_t* best;      ///< [kMaxColumns][kGroups]
};

/// Scores this block's share of a request for one set of columns.
template <class Keys>
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE void score_columns(const Scoring& s, const Keys& keys,
                                                           const Columns& pass,
                                                           const ScoredBlocks& blocks,
                                                           const Workspace& work) {
  const std::int32_t row_bytes = s.dim * Keys::kElementBytes;
  const std::int32_t pieces = (row_bytes + kPieceBytes - 1) / kPieceBytes;
  std::int32_t done = -1;  // the block whose maxima are still to be stored
  PieceVectors ahead = load_piece(s, blocks, blocks.first, 0, row_bytes);
  for (std::int32_t block = blocks.first; block < blocks.end; block += blocks.step) {
    Dots dots{};
    for (std::int32_t piece = 0; piece < pieces; ++piece) {
      __syncthreads();  // the staged keys are used, and all maxima of the last block are there
      if (done >= 0 && piece == 0) store_scores(s, pass, done, work.best);
      stage_piece(ahead, work.keys);
      __syncthreads();
      const bool last = piece + 1 == pieces;
      ahead = load_piece(s, blocks, last ? block + blocks.step : block, last ? 0 : piece + 1,
                         row_bytes);
      const std::int32_t left = row_bytes - piece * kPieceBytes;
      const float* q = work.q + piece * (kPieceBytes / Keys::kElementBytes);
      const std::int32_t vectors = (left < kPieceBytes ? left : kPieceBytes) / kVectorBytes;
      with_share(pass.count, [&](auto share) {
        if (share.key() < keys_of_block(blocks, block))
          add_vectors(share, keys, work.keys + share.key() * kStagedKey,
                      q + share.first_column() * kMaxDim, vectors, &dots);
      });
    }
    with_share(pass.count, [&](auto share) {
      find_maxima(share, dots, block * kBlockTokens, work.contexts, work.best);
    });
    done = block;
  }
  __syncthreads();
  if (done >= 0) store_scores(s, pass, done, work.best);
}

/// All work of this block of threads.
template <class Keys>
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE void score_requests(const Scoring& s, const Keys& keys,
                                                            std::int64_t rows,
                                                            const Workspace& work) {
  const std::int64_t requests = rows / s.tables.q_len;
  const std::int32_t all = s.tables.q_len * s.heads;
  const std::int64_t request_step =
      MONOREF_FAULT(score_grid_y_runs_once, "own",
                    "the blocks of the grid take one request each and stop")
          ? requests
          : gridDim.y;
  for (std::int64_t request = blockIdx.y; request < requests; request += request_step) {
    const ScoredBlocks blocks = scored_blocks(s, request);
    if (blocks.first >= blocks.end) continue;
    for (auto first = static_cast<std::int32_t>(blockIdx.z) * kMaxColumns; first < all;
         first += static_cast<std::int32_t>(gridDim.z) * kMaxColumns) {
      const std::int32_t left = all - first;
      const Columns pass{request * s.tables.q_len, first, left < kMaxColumns ? left : kMaxColumns};
      stage_columns(s, pass, work.q, work.contexts);
      score_columns(s, keys, pass, blocks, work);
      __syncthreads();  // the columns of the next pass overwrite these
    }
  }
}

MONOREF_DEVICE bool is_legal(const Scoring& s) {
  const auto base = reinterpret_cast<std::uintptr_t>(s.cache);
  const bool aligned = (base | static_cast<std::uintptr_t>(s.block_bytes) |
                        static_cast<std::uintptr_t>(s.token_bytes)) %
                           kVectorBytes ==
                       0;
  return aligned && blockDim.x == kThreads && s.dim >= 16 && s.dim <= kMaxDim && s.dim % 16 == 0 &&
         s.heads >= 1 && s.tables.q_len >= 1 && s.init >= 0 && s.local >= 0 && s.world >= 1 &&
         s.rank >= 0 && s.rank < s.world;
}

}  // namespace

// Inputs   q bf16 [rows, heads, dim], rows q_row_stride and heads q_head_stride elements apart,
//          innermost stride 1; row n is query n mod q_len of request n div q_len
//          cache codes [cache_blocks, 128, dim], blocks cache_block_stride and tokens
//          cache_token_stride elements apart, innermost stride 1, all vectors of 16 bytes aligned;
//          keys that no row of the request sees and blocks that are not listed are not read
//          block_table int32 [.., width], rows table_row_stride elements apart: plain block ids;
//          seq_lens int32 [..], seq_lens_stride elements apart, in keys, lengths below 1 count as 1
// Outputs  scores f32 [rows, heads, blocks], rows score_row_stride and heads score_head_stride
//          elements apart, innermost stride 1; written in the listed columns only, for all rows of
//          the request, those that themselves have no more than topk blocks among them
// Sizes    dim a multiple of 16, 16 .. 128; rows a multiple of q_len (what is left over is no row);
//          lengths do not fall within a request
// Options  encoding  0: E4M3FN; 1: E4M3FNUZ
//          scaling   0: the largest dot itself; 1: times f32(sm_scale * log2 e)
//          tables_of 0: tables and lengths have a row for each of `rows`; 1: for each request, the
//                    length being that of its last row
//          world, rank, shard_from: in requests of more than shard_from blocks (by the last row)
//                    only blocks rank, rank + world, ... are scored; world 1: all
// Launch   Blocks of exactly 128 threads. Any grid: x goes over the listed blocks of a request, y
//          over requests, z over sets of 16 columns (rows and heads of a request; the keys are read
//          once for each). Dynamic shared memory: 512 bytes times 1, 4 or 16, the first that is not
//          below min(q_len * heads, 16).
// Misuse   Other sizes and blocks write nothing. A block id outside the cache stands for keys of
//          zeros; columns of the table at or behind `width` are not listed.
MONOREF_KERNEL(128, monoref_index_score_fp8)(
    const std::uint16_t* q, std::int64_t q_row_stride, std::int64_t q_head_stride,
    const std::uint8_t* cache, std::int64_t cache_block_stride, std::int64_t cache_token_stride,
    std::int64_t cache_blocks, const std::int32_t* block_table, std::int64_t table_row_stride,
    const std::int32_t* seq_lens, std::int64_t seq_lens_stride, float* scores,
    std::int64_t score_row_stride, std::int64_t score_head_stride, std::int64_t rows,
    std::int32_t heads, std::int32_t dim, std::int32_t width, std::int32_t q_len, std::int32_t topk,
    std::int32_t init_blocks, std::int32_t local_blocks, float sm_scale, std::int32_t encoding,
    std::int32_t scaling, std::int32_t tables_of, std::int32_t world, std::int32_t rank,
    std::int32_t shard_from) {
  MONOREF_SHARED(std::uint8_t, keys, kStagedBytes);
  MONOREF_SHARED(std::int32_t, contexts, kMaxColumns);
  MONOREF_SHARED(std::int32_t, best, kMaxima);
  MONOREF_SHARED(Scoring, kept, 1);
  MONOREF_DYNAMIC_SHARED(float, columns);
  const Scoring s{
      q,
      q_row_stride,
      q_head_stride,
      cache,
      cache_block_stride,
      cache_token_stride,
      cache_blocks,
      {block_table, table_row_stride, seq_lens, seq_lens_stride, width, q_len, tables_of},
      scores,
      score_row_stride,
      score_head_stride,
      heads,
      dim,
      topk,
      init_blocks,
      local_blocks,
      sm_scale,
      scaling,
      shard_from,
      world,
      rank};
  if (!is_legal(s)) return;
  score_requests(kept_in_shared(kept, s), E4m3Keys{e4m3_format(encoding, kOverflowNan)}, rows,
                 {keys, columns, contexts, best});
}
MONOREF_REGISTER(monoref_index_score_fp8);

// The same for a BF16 index cache; there is no encoding.
MONOREF_KERNEL(128, monoref_index_score_bf16)(
    const std::uint16_t* q, std::int64_t q_row_stride, std::int64_t q_head_stride,
    const std::uint16_t* cache, std::int64_t cache_block_stride, std::int64_t cache_token_stride,
    std::int64_t cache_blocks, const std::int32_t* block_table, std::int64_t table_row_stride,
    const std::int32_t* seq_lens, std::int64_t seq_lens_stride, float* scores,
    std::int64_t score_row_stride, std::int64_t score_head_stride, std::int64_t rows,
    std::int32_t heads, std::int32_t dim, std::int32_t width, std::int32_t q_len, std::int32_t topk,
    std::int32_t init_blocks, std::int32_t local_blocks, float sm_scale, std::int32_t scaling,
    std::int32_t tables_of, std::int32_t world, std::int32_t rank, std::int32_t shard_from) {
  MONOREF_SHARED(std::uint8_t, keys, kStagedBytes);
  MONOREF_SHARED(std::int32_t, contexts, kMaxColumns);
  MONOREF_SHARED(std::int32_t, best, kMaxima);
  MONOREF_SHARED(Scoring, kept, 1);
  MONOREF_DYNAMIC_SHARED(float, columns);
  const Scoring s{
      q,
      q_row_stride,
      q_head_stride,
      reinterpret_cast<const std::uint8_t*>(cache),
      2 * cache_block_stride,
      2 * cache_token_stride,
      cache_blocks,
      {block_table, table_row_stride, seq_lens, seq_lens_stride, width, q_len, tables_of},
      scores,
      score_row_stride,
      score_head_stride,
      heads,
      dim,
      topk,
      init_blocks,
      local_blocks,
      sm_scale,
      scaling,
      shard_from,
      world,
      rank};
  if (!is_legal(s)) return;
  score_requests(kept_in_shared(kept, s), Bf16Keys{}, rows, {keys, columns, contexts, best});
}
MONOREF_REGISTER(monoref_index_score_bf16);

}  // namespace monoref::kernels
