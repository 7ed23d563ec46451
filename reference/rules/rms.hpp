// The root mean square that the norms divide by.
#pragma once

#include <cstdint>
#include <string_view>

namespace monoref {

/// 1 / sqrt(sum / count + eps): a correctly rounded division by binary32(count), an addition, and
/// the portable rsq, which is 1/sqrt(x) with two roundings (mono-decode sections 3.3, 3.6 and 8).
float reciprocal_rms(float sum_of_squares, std::int64_t count, float eps);

/// eps as binary32; refuses one that is not above 0 and finite there, naming the stage.
float checked_eps(std::string_view stage, double eps);

}  // namespace monoref
