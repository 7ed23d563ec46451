#include "reference/arithmetic/dot_portable.hpp"

#include <cmath>

#include "reference/fast/isa.hpp"
#include "reference/formats/convert.hpp"

namespace monoref {
namespace {

/// The chain itself; `widen` turns a code into the number it stands for.
template <class Code, class Widen>
float chain(std::span<const Code> a, std::span<const Code> b, float c, Widen widen) {
  float sum = c;
  float* const result = &sum;
  // Only for the hardware's fma instead of a call; the bits are those of std::fma anywhere.
  run_on(best_isa(), [=]() MONOREF_INLINE_BODY {
    float acc = *result;
    for (std::size_t k = 0; k < a.size(); ++k) acc = std::fma(widen(a[k]), widen(b[k]), acc);
    *result = acc;
  });
  return sum;
}

float portable_bf16(std::span<const std::uint16_t> a, std::span<const std::uint16_t> b, float c) {
  return chain(a, b, c,
               [](std::uint16_t code) MONOREF_INLINE_BODY { return float_from_bf16(code); });
}

float portable_e4m3(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b, float c) {
  const float* const table = decode_table(kE4M3FN).data();
  return chain(a, b, c, [table](std::uint8_t code) MONOREF_INLINE_BODY { return table[code]; });
}

}  // namespace

DotProfile portable_dot_profile() {
  return {.name = "portable",
          .grounds = "exact by construction: a chain of IEEE fused multiply-adds",
          .provisional = false,
          .bf16_step = 1,
          .e4m3_step = 1,
          .bf16 = portable_bf16,
          .e4m3 = portable_e4m3};
}

}  // namespace monoref
