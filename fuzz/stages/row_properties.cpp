#include "fuzz/stages/row_properties.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/rules/fp8_rules.hpp"

namespace monoref {
namespace {

/// The largest magnitude of a row; NaN if one of its codes is.
float largest_of_row(const Fp8Rules& fp8, const View<const std::uint8_t, 2>& codes,
                     std::int64_t row) {
  float largest = 0;
  for (std::int64_t i = 0; i < codes.dim(1); ++i) {
    const float value = std::fabs(fp8.decode(codes(row, i)));
    if (std::isnan(value)) return value;
    largest = std::max(largest, value);
  }
  return largest;
}

}  // namespace

Property rows_fill_the_range(std::string_view codes, std::string_view scales,
                             float scale_of_zeros) {
  return {"range", "the largest code of a row is the maximum in force, a row of zeros has zeros",
          [=](const Case& item, const Outputs& out, const Evaluate&) -> std::optional<std::string> {
            const Fp8Rules fp8 = fp8_rules(item.contract);
            const auto code = output(out, codes).view<std::uint8_t, 2>();
            const auto scale = output(out, scales).view<float, 1>();
            for (std::int64_t row = 0; row < code.dim(0); ++row) {
              const float largest = largest_of_row(fp8, code, row);
              const bool zeros = largest == 0 && scale(row) == scale_of_zeros;
              const bool judged = std::isnormal(scale(row)) || scale(row) == scale_of_zeros;
              if (judged && !zeros && largest != fp8_maximum(item.contract))
                return fmt::format("row {} with scale {} has {} as its largest code", row,
                                   scale(row), largest);
            }
            return std::nullopt;
          }};
}

}  // namespace monoref
