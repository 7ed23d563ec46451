// Number formats as lists of their values, and conversions as searches for the nearest one: what
// the kernels' conversions are compared with.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

namespace monoref::device {

inline constexpr std::uint32_t kNanBits = 0x7FC00000;

inline float float_from_bits(std::uint32_t bits) {
  return std::bit_cast<float>(bits);
}

/// E4M3FN or E4M3FNUZ, by its definition: four bits of exponent, three of mantissa.
class E4m3Model {
 public:
  E4m3Model(bool fnuz, bool saturates) : fnuz_(fnuz), saturates_(saturates) {
    const int bias = fnuz ? 8 : 7;
    for (int code = 0; code < 0x81; ++code) {
      const int exponent = code >> 3, mantissa = code & 7;
      magnitudes_.push_back(exponent == 0 ? std::ldexp(mantissa, 1 - bias - 3)
                                          : std::ldexp(8 + mantissa, exponent - bias - 3));
    }
  }

  std::uint8_t nan() const { return fnuz_ ? 0x80 : 0x7F; }
  int largest() const { return fnuz_ ? 0x7F : 0x7E; }
  bool is_nan(int code) const { return fnuz_ ? code == 0x80 : (code & 0x7F) == 0x7F; }
  double magnitude(int code) const { return magnitudes_[static_cast<std::size_t>(code)]; }

  float decode(int code) const {
    if (is_nan(code)) return float_from_bits(kNanBits);
    const auto value = static_cast<float>(magnitude(code & 0x7F));
    return (code & 0x80) != 0 ? -value : value;
  }

  /// Tries every code up to the first one that the format does not have; of two that are equally
  /// near the even one wins.
  std::uint8_t encode(float x) const {
    if (std::isnan(x)) return nan();
    // Beyond the first code that is not there nothing else can be nearest, and differences of large
    // numbers would be rounded.
    const double wanted = std::min(std::fabs(static_cast<double>(x)), magnitude(largest() + 1));
    int best = 0;
    for (int code = 1; code <= largest() + 1; ++code) {
      const double distance = std::fabs(magnitude(code) - wanted);
      const double so_far = std::fabs(magnitude(best) - wanted);
      if (distance < so_far || (distance == so_far && code % 2 == 0)) best = code;
    }
    if (best > largest()) {
      if (!saturates_) return nan();
      best = largest();
    }
    if (best == 0 && fnuz_) return 0;
    return static_cast<std::uint8_t>(std::signbit(x) ? best | 0x80 : best);
  }

 private:
  bool fnuz_, saturates_;
  std::vector<double> magnitudes_;
};

inline float decode_bf16(std::uint16_t code) {
  return float_from_bits(std::uint32_t{code} << 16);
}

/// A BF16 magnitude as a number; the first code without one (infinity) counts as 2^128.
inline double bf16_magnitude(std::uint32_t code) {
  return code == 0x7F80
             ? std::ldexp(1.0, 128)
             : std::fabs(static_cast<double>(decode_bf16(static_cast<std::uint16_t>(code))));
}

/// The nearer of the two BF16 numbers around x, the even one if both are.
inline std::uint16_t encode_bf16(float x) {
  if (std::isnan(x)) return 0x7FC0;
  const std::uint32_t below = (std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFF) >> 16;
  std::uint32_t best = below;
  if (below < 0x7F80) {
    const double wanted = std::fabs(static_cast<double>(x));
    const double down = wanted - bf16_magnitude(below), up = bf16_magnitude(below + 1) - wanted;
    if (up < down || (up == down && below % 2 == 1)) best = below + 1;
  }
  return static_cast<std::uint16_t>(best | (std::signbit(x) ? 0x8000 : 0));
}

/// The bits of a number as they are stored: one NaN only.
inline std::uint32_t stored_bits(float x) {
  return std::isnan(x) ? kNanBits : std::bit_cast<std::uint32_t>(x);
}

/// Counted numbers, mixed: the n-th draw is the same everywhere.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : state_(seed) {}

  std::uint32_t bits() {
    state_ += 0x9E3779B97F4A7C15U;
    std::uint64_t z = state_;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9U;
    z = (z ^ z >> 27) * 0x94D049BB133111EBU;
    return static_cast<std::uint32_t>((z ^ z >> 31) >> 32);
  }
  int below(int limit) { return static_cast<int>(bits() % static_cast<std::uint32_t>(limit)); }
  /// Either sign, 24 random bits, and an exponent from `low` to `high`.
  float number(int low, int high) {
    const double mantissa = 1.0 + (bits() >> 9) * 0x1p-23;
    const double value = std::ldexp(mantissa, low + below(high - low + 1));
    return static_cast<float>(below(2) == 0 ? value : -value);
  }

 private:
  std::uint64_t state_;
};

}  // namespace monoref::device
