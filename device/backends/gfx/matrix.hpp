// How matrix instructions add: the models of matrix-cores sections 1 to 3, and one that is exact.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "device/backends/gfx/manner.hpp"
#include "device/backends/gfx/number.hpp"

namespace monoref::device::gfx {

__extension__ typedef __int128 i128;           // NOLINT(modernize-use-using): no pedantic alias
__extension__ typedef unsigned __int128 u128;  // NOLINT(modernize-use-using): the same

/// A factor as its format has it: significand * 2^exponent, not normalised.
struct Factor {
  enum class Kind : std::uint8_t { kFinite, kInfinite, kNotANumber };

  i32 significand = 0;
  std::int16_t exponent = 0;  ///< of the significand's last bit
  std::int16_t fraction = 0;  ///< bits of the significand behind the leading one's place
  Kind kind = Kind::kFinite;
  bool negative = false;
};
/// A binary32 as a factor.
Factor factor_of(u32 bits);

/// A sum of any number of products of numbers up to binary32 with scales, without rounding.
class ExactSum {
 public:
  void add(i64 significand, i32 exponent);
  /// Rounded to nearest even; what is exactly zero is +0.
  u32 rounded() const;

 private:
  /// The weight of a word's last bit is 2^(kBits word + kLowest); words are added up before they
  /// carry into each other.
  static constexpr int kBits = 32, kLowest = -320, kWords = 23;
  std::array<i64, kWords> words_{};
};
/// significand * 2^exponent, rounded to nearest even.
u32 round_product(bool negative, u128 significand, i32 exponent);

/// A dot product and an addend as a model adds them: from `c` on, in the order of k.
struct Dot {
  std::span<const Factor> a, b;
  u32 c;
  bool eight_bits;  ///< FP8 and smaller, for models that treat them otherwise
  bool halves;      ///< BF16 or FP16
};
/// Throws Unsupported where the model says nothing of such factors.
u32 dot(MatrixModel model, const Dot& dot);

}  // namespace monoref::device::gfx
