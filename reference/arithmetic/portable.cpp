#include "reference/arithmetic/portable.hpp"

#include "reference/core/error.hpp"

namespace monoref {

void portable_exp2(std::span<const float> x, std::span<float> y, Isa isa) {
  if (x.size() != y.size())
    refuse("exp2: {} arguments and {} results, must be as many", x.size(), y.size());
  const float* const from = x.data();
  float* const to = y.data();
  const std::size_t count = x.size();
  run_on(isa, [=]() MONOREF_INLINE_BODY {
    for (std::size_t i = 0; i < count; ++i) to[i] = portable_exp2(from[i]);
  });
}

}  // namespace monoref
