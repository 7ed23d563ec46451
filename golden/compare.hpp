// Whether two cases, tensors or recordings are the same, bit for bit.
#pragma once

#include <string>

#include "golden/case.hpp"
#include "golden/recording.hpp"

namespace monoref {

/// Empty if both have the same type, layout and stored bytes; else the first difference in words.
std::string tensor_difference(const Tensor& left, const Tensor& right);

/// Empty if both agree in everything that a file keeps, the order of members included; reals count
/// as equal if their bits are. Else the first difference in words.
std::string case_difference(const Case& left, const Case& right);
std::string recording_difference(const Recording& left, const Recording& right);

}  // namespace monoref
