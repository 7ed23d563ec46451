#include "reference/formats/mx_scale.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace monoref {
namespace {

constexpr int kExponentOfNan = 255;
constexpr int kBias = 127;

struct ElementRange {
  float max;
  int exponent;                     ///< of max
  std::uint32_t half_a_last_place;  ///< of the element's mantissa, in bits of a binary32 mantissa
};

constexpr ElementRange range_of(MxElement element) {
  return element == MxElement::kFp8 ? ElementRange{448.0f, 8, 0x80000u}
                                    : ElementRange{6.0f, 2, 0x200000u};
}

int exponent_field(float value) {
  return static_cast<int>((std::bit_cast<std::uint32_t>(value) >> 23) & 0xFFu);
}

/// Exponent field of the value rounded up to a power of two; everything below the normals goes to
/// their first. NaN and Inf give 255.
int rounded_up_exponent(float value) {
  const bool between = (std::bit_cast<std::uint32_t>(value) & 0x7FFFFFu) != 0;
  return std::min(exponent_field(value) + (between ? 1 : 0), kExponentOfNan);
}

/// Exponent field of the value plus a fraction of its binade.
int raised_exponent(float value, std::uint32_t raise) {
  return exponent_field(std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) + raise));
}

/// The recorded mode looks for exponent 255 after the raise: the top of the last binade has no
/// scale.
int even_exponent(int raised, int shift) {
  return raised == kExponentOfNan ? kExponentOfNan : raised - shift;
}

int floor_log2(float value) {
  return std::ilogb(value);
}

int ceil_log2(float value) {
  const int floor = floor_log2(value);
  return std::ldexp(1.0f, floor) == value ? floor : floor + 1;
}

/// For finite magnitudes.
int scale_exponent(MxScaleRule rule, const ElementRange& element, float amax) {
  const int shift = element.exponent;
  switch (rule) {
    case MxScaleRule::kA:
      return rounded_up_exponent(std::max(amax, 1e-10f) * (1.0f / element.max));
    case MxScaleRule::kB:
      return raised_exponent(amax, 0x400000u) - shift;
    case MxScaleRule::kC:
      return raised_exponent(amax, 0x200000u) - shift;
    case MxScaleRule::kD:
      return ceil_log2(std::max(amax, std::numeric_limits<float>::min()) / element.max) + kBias;
    case MxScaleRule::kE:
      return floor_log2(std::max(amax, 1e-30f)) + kBias;
    case MxScaleRule::kMono:
      return std::max(rounded_up_exponent(amax * (1.0f / element.max)), 1);
    case MxScaleRule::kRoundDown:
      return exponent_field(amax) - shift;
    case MxScaleRule::kEven:
      return even_exponent(raised_exponent(amax, element.half_a_last_place), shift);
    case MxScaleRule::kCeil:
      return rounded_up_exponent(amax * std::ldexp(1.0f, -shift));
    case MxScaleRule::kRoundUp:
      return rounded_up_exponent(amax / element.max);
  }
  return kExponentOfNan;
}

bool clamps_to_numbers(MxScaleRule rule) {
  return rule == MxScaleRule::kD || rule == MxScaleRule::kE || rule == MxScaleRule::kMono;
}

}  // namespace

const FloatFormat& mx_element_format(MxElement element) {
  return element == MxElement::kFp8 ? kE4M3FN : kE2M1;
}

std::uint8_t mx_scale(MxScaleRule rule, MxElement element, float amax) {
  const float magnitude = std::fabs(amax);
  const int largest = clamps_to_numbers(rule) ? kExponentOfNan - 1 : kExponentOfNan;
  if (!std::isfinite(magnitude)) return static_cast<std::uint8_t>(largest);
  const int exponent = scale_exponent(rule, range_of(element), magnitude);
  return static_cast<std::uint8_t>(std::clamp(exponent, 0, largest));
}

}  // namespace monoref
