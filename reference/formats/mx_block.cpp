#include "reference/formats/mx_block.hpp"

#include <array>
#include <cmath>

#include "reference/arithmetic/minmax.hpp"
#include "reference/core/error.hpp"
#include "reference/formats/canonical_nan.hpp"
#include "reference/formats/convert.hpp"

namespace monoref {
namespace {

void check_sizes(MxElement element, std::size_t values, std::size_t codes, std::size_t scales) {
  if (values % kMxBlock != 0)
    refuse("mx block: {} values given, must be a multiple of {}", values, kMxBlock);
  if (codes != mx_code_bytes(element, values))
    refuse("mx block: {} bytes of codes given for {} values, must be {}", codes, values,
           mx_code_bytes(element, values));
  if (scales != values / kMxBlock)
    refuse("mx block: {} scales given for {} values, must be {}", scales, values,
           values / kMxBlock);
}

float largest_magnitude(std::span<const float> block) {
  float amax = 0.0f;
  for (const float value : block) amax = nan_max(amax, std::fabs(value));
  return amax;
}

void encode_block(MxElement element, Overflow overflow, std::span<const float> scaled,
                  std::span<std::uint8_t> codes) {
  if (element == MxElement::kFp8) return encode_fp8(kE4M3FN, scaled, codes, overflow);
  for (std::size_t i = 0; i < codes.size(); ++i)
    codes[i] = pack_fp4(encode(kE2M1, scaled[2 * i], Overflow::kSaturate),
                        encode(kE2M1, scaled[2 * i + 1], Overflow::kSaturate));
}

}  // namespace

float inverse_e8m0(std::uint8_t code) {
  return code == kE8M0Nan ? kCanonicalNan : std::ldexp(1.0f, 127 - code);
}

void mx_quantize(MxElement element, MxScaleRule rule, Overflow overflow,
                 std::span<const float> values, std::span<std::uint8_t> codes,
                 std::span<std::uint8_t> scales) {
  check_sizes(element, values.size(), codes.size(), scales.size());
  const std::size_t block_bytes = mx_code_bytes(element, kMxBlock);
  for (std::size_t block = 0; block < scales.size(); ++block) {
    const auto from = values.subspan(block * kMxBlock, kMxBlock);
    scales[block] = mx_scale(rule, element, largest_magnitude(from));
    const float inverse = inverse_e8m0(scales[block]);
    std::array<float, kMxBlock> scaled;
    for (std::size_t i = 0; i < kMxBlock; ++i) scaled[i] = from[i] * inverse;
    encode_block(element, overflow, scaled, codes.subspan(block * block_bytes, block_bytes));
  }
}

void mx_dequantize(MxElement element, E8M0Zero zero, Subnormals subnormals,
                   std::span<const std::uint8_t> codes, std::span<const std::uint8_t> scales,
                   std::span<float> values) {
  check_sizes(element, values.size(), codes.size(), scales.size());
  const std::array<float, 256>& table = decode_table(mx_element_format(element));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float scale = flushed(decode_e8m0(scales[i / kMxBlock], zero), subnormals);
    const std::uint32_t code = element == MxElement::kFp8 ? codes[i]
                               : i % 2 == 0               ? even_fp4(codes[i / 2])
                                                          : odd_fp4(codes[i / 2]);
    values[i] = canonical(flushed(table[code] * scale, subnormals));
  }
}

}  // namespace monoref
