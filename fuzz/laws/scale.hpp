// Laws of powers of two, which multiply without rounding: what goes in twice comes out twice.
#pragma once

#include "fuzz/laws/law.hpp"

namespace monoref::laws {

/// An input, a scalar or an output, and what it is multiplied by.
struct Factor {
  std::string_view name;
  int power = 1;  ///< times 2^power; 0 of an input: only its range counts
  /// What of its elements must lie between 2^low and 2^high, before and after, for the law to
  /// apply: so that nothing in between leaves the normal numbers. Zeros, Inf and NaN may be there.
  int low = -40, high = 40;
};

/// Inputs whose factors come out again. Inputs are BF16, binary32 or E8M0 (also as bytes); a case
/// need not have all of them, but one that is multiplied.
struct Scaling {
  std::vector<Factor> inputs;
  /// BF16, binary32 and E8M0; those not named are the same bits. Elements that are not normal
  /// numbers are not compared.
  std::vector<Factor> outputs;
  Applies applies = {};
  Compared compared = {};
  std::string name = {};  ///< default: the inputs that are multiplied, and "_scaling"
};

/// The statement says it: "twice a_scale is twice out".
Property scale(Scaling about);

}  // namespace monoref::laws
