// A small counter-based generator for tests: the same numbers on every platform.
#pragma once

#include <cmath>
#include <cstdint>

namespace monoref::test {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  /// SplitMix64.
  std::uint64_t bits() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  /// In [0, limit).
  std::size_t below(std::size_t limit) { return static_cast<std::size_t>(bits() % limit); }
  /// In [-1, 1).
  double signed_unit() { return static_cast<double>(static_cast<std::int64_t>(bits())) * 0x1p-63; }
  /// A random significand and sign, the exponent in [low, high].
  float number(int low, int high) {
    const int exponent = low + static_cast<int>(below(static_cast<std::size_t>(high - low + 1)));
    const double significand = 1 + std::fabs(signed_unit());
    const double sign = bits() % 2 == 0 ? 1 : -1;
    return static_cast<float>(std::ldexp(sign * significand, exponent));
  }

 private:
  std::uint64_t state_;
};

}  // namespace monoref::test
