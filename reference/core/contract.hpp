// The choices that decide bits. Every verdict and every case file states the contract it speaks of.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reference/formats/e8m0.hpp"
#include "reference/formats/mx_scale.hpp"

namespace monoref {

/// How K and V share a block (mono-decode sections 1 and 8).
enum class KvLayout : std::uint8_t {
  kInterleaved,  ///< one 128-token block holds its K pages, then its V pages: 16 page ids a block
  kDense,        ///< K and V are planes of their own: 8 page ids a block
};

/// What a cache write does with a slot at or beyond the cache's end (bug case P14).
enum class OutOfRangeSlot : std::uint8_t {
  kRefuse,  ///< the host side refuses the whole call
  kDrop,    ///< what a kernel does, which cannot refuse: the row is not written
};

/// Which FP8 activations, weights and caches are in (mono-decode section 8; bug cases F01, F15).
enum class Fp8Encoding : std::uint8_t {
  kFn,    ///< gfx950: largest 448, NaN 0x7F and 0xFF
  kFnuz,  ///< gfx942: largest 240, NaN 0x80, no -0
};

/// What a conversion to FP8 makes of a value past the largest number (mono-decode section 8; bug
/// case F16). Both leave NaN a NaN.
enum class Fp8Overflow : std::uint8_t {
  kNan,       ///< a bare convert: NaN, of an infinity too
  kSaturate,  ///< the largest number of that sign, as if clamped before; of an infinity too
};

/// The magnitude that the largest element of a quantised row is scaled to (mono-decode section 8;
/// bug case F02). Above the encoding's largest number it is refused.
enum class Fp8Max : std::uint8_t { k448, k240, k224 };

/// What the norm goes on with after the residual addition (upstream-semantics section 9.2).
enum class NormSource : std::uint8_t {
  kUnrounded,  ///< the binary32 sum
  kRounded,    ///< the sum rounded to BF16, as it is stored
};

/// Which value of a rotated key is converted to FP8 (upstream-semantics section 9.1).
enum class KeySource : std::uint8_t {
  kBf16,       ///< the key rounded to BF16 first, as AITER does: two roundings
  kUnrounded,  ///< the binary32 key, as vLLM's own kernel does
};

/// How a cache scale is applied to what is stored (upstream-semantics sections 3.3 and 9.1). The
/// results differ unless the scale is a power of two.
enum class KvScale : std::uint8_t {
  kDivide,      ///< x / scale, one rounding
  kReciprocal,  ///< x * (1 / scale), two roundings
};

/// Whose metadata of decodes: above all the length of a row of a sequence shorter than its query
/// (T02, T22) or longer than the model (T09). All of it: reference/spec/departures.md.
enum class LengthRule : std::uint8_t {
  kClamped,  ///< ours: lengths moved into 0 .. max_model_len, and every departure of the table
  kAsSeed,   ///< the original's numbers; what it raises an error on is refused
};

/// Which of two blocks with equal keys ranks first (upstream-semantics section 4.2).
enum class TopkTies : std::uint8_t {
  kHigherId,  ///< mono and AITER
  kLowerId,   ///< vLLM's fused selection
};

/// What a NaN score ranks as (upstream-semantics section 4.2); the marks of pinned blocks come
/// first.
enum class NanScore : std::uint8_t {
  kLowest,     ///< below -Inf
  kMinusInf,   ///< AITER
  kMinus1e30,  ///< vLLM's fused selection
};

/// Whether scores of -0 and +0 are equal or ordered (upstream-semantics section 4.2).
enum class ZeroScore : std::uint8_t { kEqual, kOrdered };

/// Which blocks the indexer scores, and what a score is (mono-decode section 4, upstream-semantics
/// section 4.1).
enum class IndexScores : std::uint8_t {
  kSelectable,  ///< blocks that compete for a place, times sm_scale * log2(e)
  kEveryBlock,  ///< every visible block, unscaled; pinned ones hold 1e30 or 1e29
};

/// What a row without tokens attends to (mono-decode section 8).
enum class EmptyRow : std::uint8_t {
  kContext1,  ///< key 0 of its first block, as in the mono kernels
  kContext0,  ///< nothing
};

/// How a row's keys are dealt to partial results (mono-decode section 6, upstream-semantics section
/// 6).
enum class AttentionPlan : std::uint8_t {
  kPartitions,  ///< 256 keys each, whatever the context
  kSplits,      ///< AITER: equal parts of the context, as many as fill the machine
  kChunks,      ///< vLLM's Triton kernel: the selected blocks in their order, dealt in runs
};

/// In which form q, k, v and p enter the products.
enum class AttentionOperands : std::uint8_t {
  kFp8,   ///< q and p are converted to FP8; scales apply to products
  kBf16,  ///< q as it is; k and v become bf16(code), then bf16(that * scale); p becomes bf16(p)
};

/// The base that scores are exponents of.
enum class ScoreUnits : std::uint8_t {
  kNatural,  ///< s = (sm_scale * k_scale) * dot, p = exp2((s - m) * log2(e))
  kBase2,    ///< s = dot * (sm_scale * log2(e)), p = exp2(s - m)
};

/// The score of a key past the context.
enum class MaskedScore : std::uint8_t {
  kFinite,    ///< -3.4e38: a partial result of masked keys alone has a sum of one a key
  kInfinite,  ///< -Inf
};

/// What probabilities are multiplied by before they are rounded (bug case F07).
enum class PScale : std::uint8_t { kMaximum, kOne };

/// Where the scale of V enters.
enum class VScale : std::uint8_t {
  kAtEnd,    ///< into the finished sum, together with the inverse of the scale of P
  kPerTile,  ///< into the sum of every 256 keys
};

/// What V counts as in a key past the context (bug cases S06, F09).
enum class VPastContext : std::uint8_t {
  kZeroed,  ///< zero: what memory holds there does not matter
  kKept,    ///< what memory holds, page 0 for whole pages; a NaN makes the row NaN, p being zero
};

/// What a partial result says about its weight (bug case T21).
enum class MergeWeights : std::uint8_t {
  kMaxAndSum,  ///< the largest score and the sum of p
  kLseBase2,   ///< log2 of the sum of 2^score; -Inf where there is none
  kLseBaseE,   ///< the natural logarithm of the sum of e^score; -Inf where there is none
};

/// What becomes of a partial result that saw no key: m is -Inf, or at most -FLT_MAX.
enum class EmptyPartial : std::uint8_t {
  kComputed,  ///< goes through the formulas like others; the finite mask makes no such m
  kSkipped,   ///< weight 0, and its o, which may be NaN, is not read (bug case T21)
};

/// How weighted partial results are added.
enum class MergeSum : std::uint8_t { kSeparate, kFused };

/// The order in which ranks' partial sums are added (upstream-semantics section 3.2).
enum class AllReduceOrder : std::uint8_t {
  kRankOrder,  ///< 0, 1, .. for every element
  kRotated,    ///< AITER's plain two-stage kernel: segment r starts at rank r and wraps
};

/// In what the router multiplies (upstream-semantics section 7.1).
enum class GateWeights : std::uint8_t {
  kBf16,  ///< weights of BF16; the logit is rounded to BF16 before the sigmoid
  kF32,   ///< weights of binary32, the logit as it is
};

/// What experts are ranked by (mono-decode section 7, upstream-semantics section 7.2).
enum class RoutingKey : std::uint8_t {
  kPacked,         ///< the low 7 bits of the key give way to the expert: near-equal keys tie
  kPlainLowerId,   ///< the whole key, the lower expert first
  kPlainHigherId,  ///< the whole key, the higher expert first
};

/// Where a NaN routing key ranks (mono-decode sections 8 and 10).
enum class NanKey : std::uint8_t {
  kLast,   ///< below -Inf
  kFirst,  ///< above +Inf, as a NaN of positive sign does in the original
};

/// Where the routed experts' factor enters: once (bug cases M11, M12).
enum class RoutedScaling : std::uint8_t {
  kWeights,  ///< into the routing weights
  kOutput,   ///< into the sum over the routed experts
};

/// What a SwiGLU limit of 0 means (bug case G04).
enum class SwigluLimitZero : std::uint8_t { kRefused, kNoClamp };

/// One value per choice. Stages read only the fields that concern them.
struct Contract {
  KvLayout kv_layout = KvLayout::kInterleaved;
  OutOfRangeSlot out_of_range_slot = OutOfRangeSlot::kRefuse;
  Fp8Encoding fp8_encoding = Fp8Encoding::kFn;
  Fp8Overflow fp8_overflow = Fp8Overflow::kNan;
  Fp8Max fp8_max = Fp8Max::k448;
  NormSource norm_source = NormSource::kUnrounded;
  KeySource key_source = KeySource::kBf16;
  KvScale kv_scale = KvScale::kDivide;
  LengthRule decode_lengths = LengthRule::kClamped;
  TopkTies topk_ties = TopkTies::kHigherId;
  NanScore nan_score = NanScore::kLowest;
  ZeroScore zero_score = ZeroScore::kEqual;
  IndexScores index_scores = IndexScores::kSelectable;
  EmptyRow empty_row = EmptyRow::kContext1;
  AttentionPlan attention_plan = AttentionPlan::kPartitions;
  AttentionOperands attention_operands = AttentionOperands::kFp8;
  ScoreUnits score_units = ScoreUnits::kNatural;
  MaskedScore masked_score = MaskedScore::kFinite;
  PScale p_scale = PScale::kMaximum;
  VScale v_scale = VScale::kAtEnd;
  VPastContext v_past_context = VPastContext::kZeroed;
  MergeWeights merge_weights = MergeWeights::kMaxAndSum;
  EmptyPartial empty_partial = EmptyPartial::kComputed;
  MergeSum merge_sum = MergeSum::kSeparate;
  AllReduceOrder all_reduce_order = AllReduceOrder::kRankOrder;
  GateWeights gate_weights = GateWeights::kBf16;
  RoutingKey routing_key = RoutingKey::kPacked;
  NanKey nan_key = NanKey::kLast;
  RoutedScaling routed_scaling = RoutedScaling::kWeights;
  SwigluLimitZero swiglu_limit_zero = SwigluLimitZero::kRefused;
  MxScaleRule mx_rule = MxScaleRule::kMono;
  E8M0Zero e8m0_zero = E8M0Zero::kSmallest;

  bool operator==(const Contract&) const = default;

  /// Reads `PRESET[,field=value...]`. Refuses unknown presets, fields and values, naming the legal
  /// ones.
  static Contract parse(std::string_view text);
  /// The shortest text that `parse` reads back: the preset, then the fields that differ from it.
  std::string text() const;
};

/// One row of the table of choices, for `monoref list` and `--help`.
struct ContractField {
  std::string_view name;
  std::vector<std::string_view> values;  ///< indexed by the enum's number
  std::string_view meaning;
};
const std::vector<ContractField>& contract_fields();

/// The named presets, the default first.
std::vector<std::string_view> contract_presets();

}  // namespace monoref
