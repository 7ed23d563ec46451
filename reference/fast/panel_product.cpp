// Left to itself the compiler shuffles lanes in the inner loop, so the vector forms are written
// out.
#include "reference/fast/panel_product.hpp"

#include <cmath>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace monoref {
namespace {

void product_baseline(const float* panel, const float* x, std::size_t depth, float* acc) {
  for (std::size_t k = 0; k < depth; ++k)
    for (std::size_t column = 0; column < kPanelColumns; ++column)
      for (std::size_t lane = 0; lane < kPanelLanes; ++lane) {
        float& sum = acc[column * kPanelLanes + lane];
        sum = std::fma(x[k * kPanelColumns + column], panel[k * kPanelLanes + lane], sum);
      }
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) void product_v3(const float* panel, const float* x,
                                                    std::size_t depth, float* acc) {
  for (std::size_t lane = 0; lane < kPanelLanes; lane += 8) {
    __m256 sums[kPanelColumns];
    for (std::size_t column = 0; column < kPanelColumns; ++column)
      sums[column] = _mm256_loadu_ps(acc + column * kPanelLanes + lane);
    for (std::size_t k = 0; k < depth; ++k) {
      const __m256 values = _mm256_loadu_ps(panel + k * kPanelLanes + lane);
      for (std::size_t column = 0; column < kPanelColumns; ++column)
        sums[column] = _mm256_fmadd_ps(_mm256_broadcast_ss(x + k * kPanelColumns + column), values,
                                       sums[column]);
    }
    for (std::size_t column = 0; column < kPanelColumns; ++column)
      _mm256_storeu_ps(acc + column * kPanelLanes + lane, sums[column]);
  }
}

__attribute__((target("avx512f"))) void product_v4(const float* panel, const float* x,
                                                   std::size_t depth, float* acc) {
  __m512 sums[kPanelColumns];
  for (std::size_t column = 0; column < kPanelColumns; ++column)
    sums[column] = _mm512_loadu_ps(acc + column * kPanelLanes);
  for (std::size_t k = 0; k < depth; ++k) {
    const __m512 values = _mm512_loadu_ps(panel + k * kPanelLanes);
    for (std::size_t column = 0; column < kPanelColumns; ++column)
      sums[column] =
          _mm512_fmadd_ps(_mm512_set1_ps(x[k * kPanelColumns + column]), values, sums[column]);
  }
  for (std::size_t column = 0; column < kPanelColumns; ++column)
    _mm512_storeu_ps(acc + column * kPanelLanes, sums[column]);
}
#endif

}  // namespace

PanelProduct panel_product_for([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kV4) return product_v4;
  if (isa == Isa::kV3) return product_v3;
#endif
  return product_baseline;
}

}  // namespace monoref
