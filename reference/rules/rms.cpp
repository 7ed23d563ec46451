#include "reference/rules/rms.hpp"

#include <cmath>

#include "reference/arithmetic/portable.hpp"
#include "reference/core/error.hpp"

namespace monoref {

float reciprocal_rms(float sum_of_squares, std::int64_t count, float eps) {
  return portable_rsq(portable_div(sum_of_squares, static_cast<float>(count)) + eps);
}

float checked_eps(std::string_view stage, double eps) {
  const auto narrow = static_cast<float>(eps);
  if (!(narrow > 0.0f) || !std::isfinite(narrow))
    refuse("{}: eps is {}, must be above 0 and finite in binary32", stage, eps);
  return narrow;
}

}  // namespace monoref
