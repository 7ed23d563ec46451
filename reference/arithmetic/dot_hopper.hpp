// Profiles `hopper-mma` and `hopper-wgmma`: the two ways in which an H200 adds (matrix-cores
// section 4).
//
// Both align a group of exact products, and c, to the largest exponent among them, cut every addend
// toward zero at a fixed number of fractional bits, add exactly, and cut the sum toward zero. They
// differ in the groups and the numbers of bits. Everything here was measured, but for two things
// the recordings do not contain: operands that are Inf behave as in IEEE arithmetic, and a sum past
// the binary32 range gives Inf.
#pragma once

#include "reference/arithmetic/dot_profile.hpp"

namespace monoref {

/// mma.sync. BF16 m16n8k16: groups of 16 with c, 25 fractional bits. E4M3 m16n8k32: per step of 32,
/// the elements with k mod 4 in {0, 1} and then those with k mod 4 in {2, 3} as two chained groups
/// of 16 from 0, 25 fractional bits each; c is added to the outcome by one IEEE addition.
DotProfile hopper_mma_dot_profile();

/// wgmma. BF16 m64n8k16: as mma.sync. E4M3 m64n8k32: groups of 32 with c, 13 fractional bits, and
/// the result cut to 14 significant bits.
DotProfile hopper_wgmma_dot_profile();

}  // namespace monoref
