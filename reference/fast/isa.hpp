// Instruction sets chosen at run time. A loop is written once and compiled for each of them.
//
// The bits never depend on the choice: loops that go through here use IEEE operations, std::fma and
// integers only, and the build forbids contraction. The choice is an argument of the functions that
// use it so that tests can compare every level that the machine has.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

namespace monoref {

enum class Isa : std::uint8_t {
  kBaseline,  ///< what the build targets, plain x86-64 as a rule
  kV3,        ///< x86-64-v3: AVX2 and FMA
  kV4,        ///< x86-64-v4: AVX-512 F, BW, CD, DQ, VL
};

/// The levels this machine runs, ascending; the first is always kBaseline.
std::span<const Isa> available_isas();
/// The last of `available_isas`.
Isa best_isa();
/// baseline, x86-64-v3, x86-64-v4
std::string_view isa_name(Isa isa);

/// Marks the call operator of a body given to `run_on`; without it the body keeps the build's
/// target.
#define MONOREF_INLINE_BODY __attribute__((always_inline))

namespace detail {

// The body comes by value: behind a reference its captures could alias what the loop stores.
// Features are listed instead of naming an architecture because a compiler inlines a body into a
// function with more features, but not into one for another architecture.
#if defined(__x86_64__)
template <class Body>
__attribute__((target("avx2,fma,bmi,bmi2,lzcnt,f16c,movbe"))) void run_v3(Body body) {
  body();
}
template <class Body>
__attribute__((
    target("avx2,fma,bmi,bmi2,lzcnt,f16c,movbe,avx512f,avx512bw,avx512cd,avx512dq,avx512vl"))) void
run_v4(Body body) {
  body();
}
#endif

}  // namespace detail

/// Calls `body()` compiled for `isa`, which must be one of `available_isas`.
template <class Body>
void run_on([[maybe_unused]] Isa isa, Body body) {
#if defined(__x86_64__)
  if (isa == Isa::kV4) return detail::run_v4(body);
  if (isa == Isa::kV3) return detail::run_v3(body);
#endif
  body();
}

}  // namespace monoref
