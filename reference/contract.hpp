// The choices that decide bits. Every verdict and every case file states the contract it speaks of.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace monoref {

/// How K and V share a block (specification sections 1 and 8).
enum class KvLayout : std::uint8_t {
  kInterleaved,  ///< one 128-token block holds its K pages, then its V pages: 16 page ids a block
  kDense,        ///< K and V are planes of their own: 8 page ids a block
};

/// What a cache write does with a slot at or beyond the cache's end (bug case P14).
enum class OutOfRangeSlot : std::uint8_t {
  kRefuse,  ///< the host side refuses the whole call
  kDrop,    ///< what a kernel does, which cannot refuse: the row is not written
};

/// Which FP8 the codes of activations, weights and caches are (section 8, bug cases F01, F15).
enum class Fp8Encoding : std::uint8_t {
  kFn,    ///< gfx950: largest 448, NaN 0x7F and 0xFF
  kFnuz,  ///< gfx942: largest 240, NaN 0x80, no -0
};

/// What a conversion to FP8 makes of a value past the largest number (section 8, bug case F16).
/// Both leave NaN a NaN.
enum class Fp8Overflow : std::uint8_t {
  kNan,       ///< a bare convert: NaN, of an infinity too
  kSaturate,  ///< the largest number of that sign, as if clamped before; of an infinity too
};

/// The magnitude that the largest element of a quantised row is scaled to (section 8, bug case
/// F02). Above the encoding's largest number it is refused.
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

/// What becomes of a decode row's length where the sequence is shorter than its query (padded
/// requests, bug cases T02 and T22) or longer than the model allows (bug case T09).
enum class LengthRule : std::uint8_t {
  kClamped,  ///< moved into 0 .. max_model_len
  kAsSeed,   ///< left as computed, negative or too long
};

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
