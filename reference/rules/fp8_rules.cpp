#include "reference/rules/fp8_rules.hpp"

#include "reference/core/error.hpp"

namespace monoref {

Fp8Rules fp8_rules(const Contract& contract) {
  const bool saturate = contract.fp8_overflow == Fp8Overflow::kSaturate;
  return {float_format(fp8_dtype(contract)), saturate ? Overflow::kSaturate : Overflow::kNan};
}

DType fp8_dtype(const Contract& contract) {
  return contract.fp8_encoding == Fp8Encoding::kFnuz ? DType::kFloat8E4M3FNUZ
                                                     : DType::kFloat8E4M3FN;
}

float fp8_maximum(const Contract& contract) {
  const float maximum = contract.fp8_max == Fp8Max::k224   ? 224.0f
                        : contract.fp8_max == Fp8Max::k240 ? 240.0f
                                                           : 448.0f;
  const FloatFormat& format = float_format(fp8_dtype(contract));
  const float largest = decode(format, format.largest());
  if (maximum > largest)
    refuse("contract: fp8_max is {}, limit {}, the largest number of {}", maximum, largest,
           format.name);
  return maximum;
}

}  // namespace monoref
