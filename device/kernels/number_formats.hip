// The conversions and portable functions by themselves, so that every input can be sent through
// every backend.
//
// Source of the rule: mono-decode sections 8 and 10.

#include <cstdint>

#include "device/kernels/arithmetic.hpp"
#include "device/kernels/flat_grid.hpp"
#include "device/kernels/number_formats.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {

// For all of these: arrays of `count` elements, dense; any grid in x and any block of whole waves
// in one dimension. encoding 0: E4M3FN, 1: E4M3FNUZ; overflow 0: NaN, 1: saturate.

// codes[i] = bf16(values[i]).
MONOREF_KERNEL(1024, monoref_encode_bf16)(const float* values, std::uint16_t* codes,
                                          std::int64_t count) {
  for (std::int64_t i = thread_of_grid(); i < count; i += threads_of_grid())
    codes[i] = bf16_of(values[i]);
}
MONOREF_REGISTER(monoref_encode_bf16);

// values[i] = the number that codes[i] stands for; NaN canonical.
MONOREF_KERNEL(1024, monoref_decode_bf16)(const std::uint16_t* codes, float* values,
                                          std::int64_t count) {
  for (std::int64_t i = thread_of_grid(); i < count; i += threads_of_grid())
    values[i] = canonical(float_of_bf16(codes[i]));
}
MONOREF_REGISTER(monoref_decode_bf16);

// codes[i] = e4m3(values[i]).
MONOREF_KERNEL(1024, monoref_encode_e4m3)(const float* values, std::uint8_t* codes,
                                          std::int64_t count, std::int32_t encoding,
                                          std::int32_t overflow) {
  const E4m3 format = e4m3_format(encoding, overflow);
  for (std::int64_t i = thread_of_grid(); i < count; i += threads_of_grid())
    codes[i] = e4m3_of(values[i], format);
}
MONOREF_REGISTER(monoref_encode_e4m3);

// values[i] = the number that codes[i] stands for; NaN canonical.
MONOREF_KERNEL(1024, monoref_decode_e4m3)(const std::uint8_t* codes, float* values,
                                          std::int64_t count, std::int32_t encoding) {
  const E4m3 format = e4m3_format(encoding, kOverflowNan);
  for (std::int64_t i = thread_of_grid(); i < count; i += threads_of_grid())
    values[i] = float_of_e4m3(codes[i], format);
}
MONOREF_REGISTER(monoref_decode_e4m3);

// reciprocals[i] = 1 / x[i], roots[i] = 1 / sqrt(x[i]), powers[i] = 2^x[i]; NaN canonical.
MONOREF_KERNEL(1024, monoref_portable_functions)(const float* x, float* reciprocals, float* roots,
                                                 float* powers, std::int64_t count) {
  for (std::int64_t i = thread_of_grid(); i < count; i += threads_of_grid()) {
    reciprocals[i] = canonical(rcp(x[i]));
    roots[i] = canonical(rsq(x[i]));
    powers[i] = exp2_portable(x[i]);
  }
}
MONOREF_REGISTER(monoref_portable_functions);

}  // namespace monoref::kernels
