// Profile `portable`: the contract of the in-tree kernels (matrix-cores section 1).
#pragma once

#include "reference/arithmetic/dot_profile.hpp"

namespace monoref {

/// acc = fma(a[k], b[k], acc) in ascending k from c; any length.
DotProfile portable_dot_profile();

}  // namespace monoref
