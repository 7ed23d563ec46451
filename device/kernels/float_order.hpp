// The order of binary32 numbers as that of integers, for maxima that do not depend on the order in
// which they are taken: NaN above everything (a maximum propagates it), and +0 above -0.
#pragma once

#include <cstdint>

#include "device/kernels/number_formats.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {  // each variant of a kernel has its own

/// Rank of -inf, below which there is no number.
constexpr std::int32_t kLowestRank = -0x7F800001;

/// Bits of a float as a signed integer that orders as the float does; swaps with `bits_of_rank`.
MONOREF_DEVICE std::int32_t rank_of_bits(std::int32_t bits) {
  return bits < 0 ? bits ^ 0x7FFFFFFF : bits;
}

/// The rank of a number; all NaN have that of the canonical one.
MONOREF_DEVICE std::int32_t rank_of(float x) {
  return rank_of_bits(simt::bit_cast<std::int32_t>(canonical(x)));
}

MONOREF_DEVICE float float_of_rank(std::int32_t rank) {
  return simt::bit_cast<float>(rank_of_bits(rank));
}

MONOREF_DEVICE std::int32_t larger_rank(std::int32_t a, std::int32_t b) {
  return a > b ? a : b;
}

/// Maximum of 2^n neighbouring lanes, 2^n = `lanes` <= 32.
template <int lanes>
MONOREF_DEVICE MONOREF_WAVE_COLLECTIVE std::int32_t largest_rank_of_lanes(std::int32_t rank) {
  for (int mask = lanes / 2; mask > 0; mask /= 2)
    rank = larger_rank(rank, simt::shuffle_xor(rank, mask));
  return rank;
}

}  // namespace
}  // namespace monoref::kernels
