// sparse_block_table: one query row's selected blocks as physical page-16 ids, and its context.
//
// Source of the rule: sparse-pa: _write_sparse_block_table_row_from_values and its two builders,
// upstream-semantics section 5. One wave makes one row; a lane looks at one selected id (two, on
// waves narrower than 64).
//
//   causal_len = max(abs_pos + 1, 0), self = abs_pos div 128
//   an id is full if 0 <= id < self, the tail if id == self, and otherwise not valid;
//   nothing is valid if causal_len is 0
//   full blocks keep their order and lie together in slots 0 .. n_full-1, the tail goes to n_full
//   pages of slot s: block_table[request][id] * page_stride + j in columns 8s+j, j = 0..7
//   every other column is 0, those that the original leaves as they were (behind a tail that was
//   selected more than once) among them
//   context = 128 * n_full + (tail ? causal_len - 128 * self : 0), at most causal_len if there is
//   no tail

#include <cstdint>

#include "device/kernels/flat_grid.hpp"
#include "device/kernels/page_layout.hpp"
#include "device/kernels/row_copy.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {

/// The widest selection of a row, and how many of its ids one lane holds.
constexpr std::int32_t kMaxTopk = 64;
constexpr std::int32_t kIdsPerLane = kMaxTopk / simt::kWave;
constexpr std::int32_t kNoSlot = -1;

/// What all rows of a launch share.
struct TableShape {
  std::int32_t topk;         ///< ids a row, 1 .. 64
  std::int32_t width;        ///< columns of the block table
  std::int32_t page_stride;  ///< page ids a block spans
};

/// What the query at `abs_pos` may see.
struct CausalLimit {
  std::int64_t length;  ///< keys
  std::int64_t self;    ///< the block that holds the last of them
};

MONOREF_DEVICE CausalLimit causal_limit(std::int64_t abs_pos) {
  const std::int64_t length = abs_pos < 0 ? 0 : abs_pos + 1;
  if (MONOREF_FAULT(sparse_table_self_from_length, "own",
                    "own block from the length instead of the position"))
    return {length, length / kBlockTokens};
  // A negative position has length 0, and nothing is valid then, whatever its block would be.
  return {length, abs_pos / kBlockTokens};
}

enum class Kind : std::uint8_t { kInvalid, kFull, kTail };

/// Ids at or beyond the width of the table name no page and count as not selected.
MONOREF_DEVICE Kind kind_of(std::int32_t id, const CausalLimit& limit, std::int32_t width) {
  if (MONOREF_FAULT(sparse_table_future_block_full, "S03",
                    "a block beyond the causal limit counts as full") &&
      limit.length > 0 && id > limit.self)
    return Kind::kFull;
  if (MONOREF_FAULT(sparse_table_invalid_id_as_column_0, "own", "id -1 reads table column 0") &&
      limit.self > 0 && id < 0)
    return Kind::kFull;
  if (limit.length == 0 && !MONOREF_FAULT(sparse_table_no_empty_row_guard, "S01",
                                          "a row without tokens keeps its stale selection"))
    return Kind::kInvalid;
  if (id < 0 || id > limit.self || id >= width) return Kind::kInvalid;
  return id == limit.self ? Kind::kTail : Kind::kFull;
}

/// The ids of one lane, and the slot of each.
struct LaneIds {
  std::int32_t id[kIdsPerLane];
  std::int32_t slot[kIdsPerLane];
};

/// How many ids of the row are full blocks, and how many are its tail.
struct Selected {
  std::int32_t full;
  std::int32_t tails;
  MONOREF_MEMBER std::int32_t used() const { return full + (tails > 0 ? 1 : 0); }
};

/// Reads the ids of a row and gives each its slot.
MONOREF_DEVICE MONOREF_WAVE_COLLECTIVE Selected place_ids(const std::int32_t* ids,
                                                          std::int64_t id_stride,
                                                          const TableShape& shape,
                                                          const CausalLimit& limit,
                                                          LaneIds* lane_ids) {
  Selected selected{0, 0};
  bool is_tail[kIdsPerLane];
  for (std::int32_t i = 0; i < kIdsPerLane; ++i) {
    const std::int32_t index = i * simt::kWave + simt::lane();
    const std::int64_t stride =
        MONOREF_FAULT(sparse_table_id_stride_ignored, "S04", "ids of a row read as if dense")
            ? 1
            : id_stride;
    const std::int32_t id = index < shape.topk ? ids[index * stride] : -1;
    const Kind kind = index < shape.topk ? kind_of(id, limit, shape.width) : Kind::kInvalid;
    const std::uint64_t tails = simt::ballot(kind == Kind::kTail);
    const bool later_tail = selected.tails > 0 || (tails & lanes_below()) != 0;
    const bool full =
        kind == Kind::kFull || (MONOREF_FAULT(sparse_table_second_tail_full, "own",
                                              "a repeated tail counts as a full block") &&
                                kind == Kind::kTail && later_tail);
    const std::uint64_t fulls = simt::ballot(full);
    is_tail[i] = kind == Kind::kTail && !later_tail;
    lane_ids->id[i] = id;
    lane_ids->slot[i] = full ? selected.full + lanes_of(fulls & lanes_below()) : kNoSlot;
    if (MONOREF_FAULT(sparse_table_not_compacted, "own",
                      "full blocks keep the holes between them") &&
        full)
      lane_ids->slot[i] = index;
    if (MONOREF_FAULT(sparse_table_tail_in_place, "own", "the tail stays where it was selected") &&
        kind != Kind::kInvalid)
      lane_ids->slot[i] =
          selected.full + selected.tails + lanes_of((fulls | tails) & lanes_below());
    selected.full += lanes_of(fulls);
    selected.tails += lanes_of(tails);
  }
  for (std::int32_t i = 0; i < kIdsPerLane; ++i) {
    if (MONOREF_FAULT(sparse_table_order_reversed, "own", "full blocks in reversed order") &&
        lane_ids->slot[i] != kNoSlot)
      lane_ids->slot[i] = selected.full - 1 - lane_ids->slot[i];
    // The tail goes last, and only once however often it was selected.
    if (is_tail[i] && !MONOREF_FAULT_AT(sparse_table_tail_in_place))
      lane_ids->slot[i] = selected.full;
  }
  return selected;
}

/// Writes the eight columns of one slot: first, first + step, ... (wrapping as int32 does).
template <bool wide>
MONOREF_DEVICE void write_slot(std::int32_t* row, std::int32_t slot, std::uint32_t first,
                               std::uint32_t step) {
  std::int32_t* columns = row + std::int64_t{slot} * kPagesPerSide;
  for (std::uint32_t j = 0; j < kPagesPerSide; j += 4) {
    const std::uint32_t at = first + j * step;
    const simt::Vec16 pages{{at, at + step, at + 2 * step, at + 3 * step}};
    if constexpr (wide) {
      simt::store16(columns + j, pages);
    } else {
      for (std::uint32_t i = 0; i < 4; ++i)
        columns[j + i] = static_cast<std::int32_t>(pages.word[i]);
    }
  }
}

/// Keys that a row's table gives access to.
MONOREF_DEVICE std::int64_t context_of(const Selected& selected, const CausalLimit& limit) {
  const std::int64_t full = std::int64_t{selected.full} * kBlockTokens;
  if (selected.tails > 0) {
    const std::int64_t tail =
        MONOREF_FAULT(sparse_table_full_tail_empty, "own", "a tail of 128 tokens counts 0")
            ? limit.length % kBlockTokens
            : limit.length - limit.self * kBlockTokens;
    return full + tail;
  }
  if (MONOREF_FAULT(sparse_table_context_at_least_1, "own", "a row without tokens has context 1") &&
      limit.length == 0)
    return 1;
  if (MONOREF_FAULT(sparse_table_context_not_capped, "S03",
                    "context without a tail may exceed the causal length"))
    return full;
  return full < limit.length ? full : limit.length;
}

/// Columns [8 * used, 8 * topk) are 0, page 0 being the null page.
template <bool wide>
MONOREF_DEVICE void clear_unused(std::int32_t* row, std::int32_t used, std::int32_t topk) {
  if (MONOREF_FAULT(sparse_table_stale_columns, "D04", "unused columns are not zeroed")) return;
  std::int32_t end = topk;
  while (MONOREF_FAULT(sparse_table_fill_power_of_two, "S02",
                       "zero fill to the next power of two overruns the row") &&
         (end & (end - 1)) != 0)
    ++end;
  for (std::int32_t slot = used + simt::lane(); slot < end; slot += simt::kWave)
    write_slot<wide>(row, slot, 0, 0);
}

/// The table column of a valid id: the id itself. Faults that let other ids through read column 0,
/// so that what they count is seen and not a fault of memory.
MONOREF_DEVICE std::int32_t column_of(std::int32_t id, std::int32_t width) {
  const bool lets_through = MONOREF_FAULT_AT(sparse_table_future_block_full) ||
                            MONOREF_FAULT_AT(sparse_table_invalid_id_as_column_0);
  return lets_through && (id < 0 || id >= width) ? 0 : id;
}

/// Writes the table columns of one row. Two instantiations: in one body the compiler merges aligned
/// and unaligned stores into narrow ones. `wide`: the row starts on 16 bytes.
template <bool wide>
MONOREF_DEVICE void write_columns(const LaneIds& lane_ids, const Selected& selected,
                                  const std::int32_t* table_row, const TableShape& shape,
                                  std::int32_t* row) {
  const std::uint32_t page_stride =
      MONOREF_FAULT(sparse_table_page_stride_8, "P05", "page stride 8 for packed sides")
          ? kPagesPerSide
          : shape.page_stride;
  for (std::int32_t i = 0; i < kIdsPerLane; ++i) {
    if (lane_ids.slot[i] == kNoSlot) continue;
    auto block = static_cast<std::uint32_t>(table_row[column_of(lane_ids.id[i], shape.width)]);
    if (MONOREF_FAULT(sparse_table_block_16_bits, "O01", "block id cut to 16 bits"))
      block &= 0xFFFF;
    write_slot<wide>(row, lane_ids.slot[i], block * page_stride, 1);
  }
  clear_unused<wide>(row, selected.used(), shape.topk);
}

/// Makes one row. `table_row` is read at valid ids only; it may be null if none can be valid.
MONOREF_DEVICE MONOREF_WAVE_COLLECTIVE void write_sparse_row(
    const std::int32_t* ids, std::int64_t id_stride, const std::int32_t* table_row,
    std::int64_t abs_pos, const TableShape& shape, std::int32_t* row, std::int32_t* context) {
  const CausalLimit limit = causal_limit(abs_pos);
  if (MONOREF_FAULT(sparse_table_empty_row_unwritten, "S26",
                    "a row without tokens is not written") &&
      limit.length == 0)
    return;
  LaneIds lane_ids;
  const Selected selected = place_ids(ids, id_stride, shape, limit, &lane_ids);
  if (aligned16(row)) {
    write_columns<true>(lane_ids, selected, table_row, shape, row);
  } else {
    write_columns<false>(lane_ids, selected, table_row, shape, row);
  }
  if (simt::lane() == 0) *context = static_cast<std::int32_t>(context_of(selected, limit));
}

/// The selection and the outputs of a launch, as both kernels take them.
struct RowBuffers {
  const std::int32_t* topk_idx;
  std::int64_t topk_row_stride;
  std::int64_t topk_id_stride;
  std::int32_t* sparse_table;
  std::int64_t sparse_row_stride;
  std::int32_t* context_lens;
};

/// Makes row `row` from the table row of `request` (none: a request that the table does not have).
MONOREF_DEVICE MONOREF_WAVE_COLLECTIVE void write_row_of_request(
    const RowBuffers& buffers, const TableShape& shape, const std::int32_t* block_table,
    std::int64_t table_row_stride, std::int64_t requests, std::int64_t request,
    std::int64_t abs_pos, std::int64_t row) {
  const bool known = request >= 0 && request < requests;
  std::int64_t ids_at = row * buffers.topk_row_stride;
  if (MONOREF_FAULT(sparse_table_topk_row_stride_ignored, "S04",
                    "rows of the selection read as if dense"))
    ids_at = row * shape.topk;
  std::int64_t table_stride = table_row_stride;
  if (MONOREF_FAULT(sparse_table_source_stride_ignored, "T08",
                    "source rows taken to be as far apart as they are wide"))
    table_stride = shape.width;
  std::int64_t out_stride = buffers.sparse_row_stride;
  if (MONOREF_FAULT(sparse_table_destination_stride_ignored, "T08",
                    "destination rows taken to be as far apart as they are wide"))
    out_stride = std::int64_t{shape.topk} * kPagesPerSide;
  write_sparse_row(buffers.topk_idx + ids_at, buffers.topk_id_stride,
                   known ? block_table + request * table_stride : nullptr, known ? abs_pos : -1,
                   shape, buffers.sparse_table + row * out_stride, buffers.context_lens + row);
}

}  // namespace

// Inputs   topk_idx int32 [1, total_q, topk], elements topk_row_stride and topk_id_stride apart
//          block_table int32 [requests, width], rows table_row_stride elements apart; block ids
//          seq_lens int32 [requests], seq_lens_stride elements apart; in keys, this step's included
// Outputs  sparse_table int32 [total_q, 8 * topk], rows sparse_row_stride elements apart; columns
//          behind 8 * topk stay as they are; page ids
//          context_lens int32 [total_q], dense; in keys
// Sizes    topk 1 .. 64, any number; page_stride >= 8 page ids a block (8 dense sides, 16
//          interleaved); total_q == requests * q_len, row n is query n mod q_len of request
//          n div q_len, at abs_pos = seq_len - q_len + n mod q_len.
// Launch   any grid in x, any block of whole waves; a wave makes one row at a time, so
//          ceil(total_q / waves of a block) blocks keep every wave busy. No shared memory.
// Misuse   Rows of requests that the table does not have, rows with no key and ids that are not
//          valid or beyond the width of the table give zeros; nothing is read for them. Ids behind
//          the 64th are not looked at. q_len < 1 writes nothing. Page ids wrap as int32 does.
MONOREF_KERNEL(1024, monoref_sparse_block_table_decode)(
    const std::int32_t* topk_idx, std::int64_t topk_row_stride, std::int64_t topk_id_stride,
    const std::int32_t* block_table, std::int64_t table_row_stride, const std::int32_t* seq_lens,
    std::int64_t seq_lens_stride, std::int32_t* sparse_table, std::int64_t sparse_row_stride,
    std::int32_t* context_lens, std::int64_t total_q, std::int64_t requests, std::int32_t topk,
    std::int32_t width, std::int32_t q_len, std::int32_t page_stride) {
  if (q_len < 1) return;
  const RowBuffers buffers{topk_idx,     topk_row_stride,   topk_id_stride,
                           sparse_table, sparse_row_stride, context_lens};
  const TableShape shape{topk, width, page_stride};
  const std::int64_t row_step =
      MONOREF_FAULT(sparse_table_grid_x_runs_once, "own",
                    "the blocks of the grid take one row a wave each and stop")
          ? total_q
          : waves_of_grid();
  for (std::int64_t row = wave_of_grid(); row < total_q; row += row_step) {
    std::int64_t request = row / q_len;
    const std::int64_t query = row - request * q_len;
    if (MONOREF_FAULT(sparse_table_request_modulo, "T03",
                      "a row belongs to request row mod requests"))
      request = row % requests;
    const std::int64_t seq_len = request < requests ? seq_lens[request * seq_lens_stride] : 0;
    std::int64_t abs_pos = seq_len - q_len + query;
    if (MONOREF_FAULT(sparse_table_position_off_by_one, "T12", "every position one short"))
      abs_pos = seq_len - q_len + query - 1;
    if (MONOREF_FAULT(sparse_table_last_query_position, "T11",
                      "every query stands at the last position"))
      abs_pos = seq_len - 1;
    if (MONOREF_FAULT(sparse_table_table_row_of_query, "T01",
                      "table row of the query instead of the request"))
      request = row;
    write_row_of_request(buffers, shape, block_table, table_row_stride, requests, request, abs_pos,
                         row);
  }
}
MONOREF_REGISTER(monoref_sparse_block_table_decode);

// As the decode kernel, but with a request and a position given for each row:
// Inputs   query_req_id int32 [total_q], req_id_stride elements apart
//          query_abs_pos int32 [total_q], abs_pos_stride elements apart; may be negative
MONOREF_KERNEL(1024, monoref_sparse_block_table_prefill)(
    const std::int32_t* topk_idx, std::int64_t topk_row_stride, std::int64_t topk_id_stride,
    const std::int32_t* block_table, std::int64_t table_row_stride,
    const std::int32_t* query_req_id, std::int64_t req_id_stride, const std::int32_t* query_abs_pos,
    std::int64_t abs_pos_stride, std::int32_t* sparse_table, std::int64_t sparse_row_stride,
    std::int32_t* context_lens, std::int64_t total_q, std::int64_t requests, std::int32_t topk,
    std::int32_t width, std::int32_t page_stride) {
  const RowBuffers buffers{topk_idx,     topk_row_stride,   topk_id_stride,
                           sparse_table, sparse_row_stride, context_lens};
  const TableShape shape{topk, width, page_stride};
  const std::int64_t row_step =
      MONOREF_FAULT_AT(sparse_table_grid_x_runs_once) ? total_q : waves_of_grid();
  for (std::int64_t row = wave_of_grid(); row < total_q; row += row_step) {
    const std::int64_t id_stride = MONOREF_FAULT(sparse_table_req_id_stride_ignored, "T05",
                                                 "request ids read as if contiguous")
                                       ? 1
                                       : req_id_stride;
    write_row_of_request(buffers, shape, block_table, table_row_stride, requests,
                         query_req_id[row * id_stride], query_abs_pos[row * abs_pos_stride], row);
  }
}
MONOREF_REGISTER(monoref_sparse_block_table_prefill);

}  // namespace monoref::kernels
