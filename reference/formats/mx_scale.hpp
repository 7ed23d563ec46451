// The shared exponent of an MX block: ten rules in use for the same byte (bug case X08).
#pragma once

#include <cstdint>

#include "reference/formats/float_format.hpp"

namespace monoref {

/// Element format of an MX block.
enum class MxElement : std::uint8_t {
  kFp8,  ///< MXFP8: E4M3FN, largest 448 = 1.75 * 2^8
  kFp4,  ///< MXFP4: E2M1, largest 6 = 1.5 * 2^2
};

const FloatFormat& mx_element_format(MxElement element);

/// How the scale byte follows from the block's largest magnitude. Letters are those of
/// upstream-semantics section 7.4; the last four are the modes of the recording e8m0_and_fp4.
/// Below, max is 448 or 6, t is 8 or 2 (the exponent of max), exp and mantissa are fields of a
/// binary32.
enum class MxScaleRule : std::uint8_t {
  kA,          ///< u = max(amax, 1e-10) * f32(1/max); exp(u) + (mantissa(u) != 0)
  kB,          ///< exp of (bits + 0x400000), minus t, at least 0: switches at 1.5 * 2^k
  kC,          ///< exp of (bits + 0x200000), minus t, at least 0: switches at 1.75 * 2^k
  kD,          ///< ceil(log2(max(amax, FLT_MIN) / max)) + 127, in [0, 254]
  kE,          ///< floor(log2(max(amax, 1e-30))) + 127, in [0, 254]: elements reach 2 only
  kMono,       ///< u = amax * f32(1/max); exp(u) + (mantissa(u) != 0), in [1, 254]
  kRoundDown,  ///< exp(amax) - t, at least 0: the block's largest may overflow
  kEven,  ///< exp of (bits + half a last place of the element), minus t, at least 0; 255 gives 255
  kCeil,  ///< u = amax * 2^-t; exp(u) + (mantissa(u) != 0)
  kRoundUp,  ///< u = amax / max; exp(u) + (mantissa(u) != 0)
};

/// The E8M0 byte for a block with this largest magnitude (>= 0 or NaN; the sign is ignored).
///
/// All products and quotients are single binary32 operations, and logarithms are exact: no libm is
/// involved. Rules A and D divide by the maximum of the element at hand; upstream uses D and E for
/// MXFP8 alone. Inf and NaN: 254 under the rules that clamp to 254 (D, E, mono: mono-decode section
/// 10 says so for mono), 255 under all others (recorded for the last four; A, B and C do not say,
/// so it is ours). A zero block gives a finite positive scale under every rule with byte 0 read as
/// 2^-127: bytes 85 (A, MXFP8) or 92 (A, MXFP4), 27 (E), 1 (mono), 0 (the others).
std::uint8_t mx_scale(MxScaleRule rule, MxElement element, float amax);

}  // namespace monoref
