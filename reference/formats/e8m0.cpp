#include "reference/formats/e8m0.hpp"

#include <algorithm>
#include <cmath>

#include "reference/formats/canonical_nan.hpp"

namespace monoref {
namespace {

constexpr int kBias = 127;

}  // namespace

float decode_e8m0(std::uint8_t code, E8M0Zero zero) {
  if (code == kE8M0Nan) return kCanonicalNan;
  if (code == 0 && zero == E8M0Zero::kZero) return 0.0f;
  return std::ldexp(1.0f, code - kBias);
}

std::uint8_t encode_e8m0(double value, Overflow overflow) {
  if (std::isnan(value) || value < 0) return kE8M0Nan;
  if (value <= std::ldexp(1.0, -kBias)) return 0;
  const std::uint8_t past = overflow == Overflow::kSaturate ? kE8M0Largest : kE8M0Nan;
  if (std::isinf(value)) return past;
  const int below = std::ilogb(value) + kBias;
  if (below > kE8M0Largest) return past;
  const double midpoint = std::ldexp(1.5, below - kBias);
  const bool up = value > midpoint || (value == midpoint && below % 2 != 0);
  const int code = below + (up ? 1 : 0);
  return code > kE8M0Largest ? past : static_cast<std::uint8_t>(code);
}

FloatClass classify_e8m0(std::uint8_t code) {
  return code == kE8M0Nan ? FloatClass::kNan : FloatClass::kNormal;
}

std::uint8_t next_up_e8m0(std::uint8_t code) {
  return code >= kE8M0Largest ? code : static_cast<std::uint8_t>(code + 1);
}

std::uint8_t next_down_e8m0(std::uint8_t code) {
  return code == kE8M0Nan || code == 0 ? code : static_cast<std::uint8_t>(code - 1);
}

}  // namespace monoref
