#include "fuzz/stages/floats.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace monoref {
namespace {

constexpr std::byte kGapPoison{0xC3};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

float with_random_sign(float magnitude, CounterRandom& random) {
  return random.once_in(2) ? -magnitude : magnitude;
}

float number_of_exponent(std::int64_t exponent, CounterRandom& random) {
  const std::uint32_t mantissa = random.bits32() & 0x7FFFFFu;
  const auto field = static_cast<std::uint32_t>(exponent + 127);
  return with_random_sign(std::bit_cast<float>(field << 23 | mantissa), random);
}

/// Five significant bits, the last one set: the midpoints of three mantissa bits. With the lowest
/// exponents they lie between subnormals too.
float tie(CounterRandom& random) {
  const auto significand = static_cast<float>(2 * random.between(8, 15) + 1);
  if (random.once_in(8))  // between two subnormals of FN (quantum 2^-9) or FNUZ (2^-10)
    return with_random_sign(std::ldexp(static_cast<float>(2 * random.below(8) + 1),
                                       static_cast<int>(-10 - random.below(2))),
                            random);
  return with_random_sign(std::ldexp(significand, static_cast<int>(random.between(-11, 4))),
                          random);
}

float moved(float value, std::int64_t places) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(std::bit_cast<std::uint32_t>(value) +
                                                         static_cast<std::uint32_t>(places)));
}

/// Up to 2^12 last places from a tie: BF16 drops that difference.
float near_tie(CounterRandom& random) {
  const std::int64_t places = std::int64_t{1} << random.below(13);
  return moved(tie(random), random.once_in(2) ? places : -places);
}

float overflowing(CounterRandom& random) {
  constexpr std::array<float, 12> kEdges{240, 244, 247, 248, 256,  432,
                                         448, 464, 465, 480, 1000, 3e38f};
  if (random.once_in(16)) return with_random_sign(kInfinity, random);
  const float edge = kEdges[static_cast<std::size_t>(random.below(kEdges.size()))];
  return with_random_sign(moved(edge, random.between(-1, 1)), random);
}

float tiny(CounterRandom& random) {
  switch (random.below(4)) {
    case 0:
      return with_random_sign(
          moved(std::ldexp(1.0f, static_cast<int>(random.between(-13, -8))), random.between(-1, 1)),
          random);
    case 1:
      return with_random_sign(0.0f, random);
    case 2:
      return with_random_sign(std::bit_cast<float>(random.bits32() & 0x7FFFFFu), random);
    default:
      return number_of_exponent(random.between(-126, -14), random);
  }
}

float special(CounterRandom& random) {
  if (!random.once_in(6)) return number_of_exponent(random.between(-6, 6), random);
  constexpr std::array<std::uint32_t, 10> kBits{0x7FC00000, 0xFFC00000, 0x7F810000, 0xFFFFFFFF,
                                                0x7F800000, 0xFF800000, 0x00000000, 0x80000000,
                                                0x7F7FFFFF, 0x00010000};
  return std::bit_cast<float>(kBits[static_cast<std::size_t>(random.below(kBits.size()))]);
}

}  // namespace

Dimension floats_dimension(std::string_view name, std::string_view meaning) {
  return Dimension::choice(
      name, {"ordinary", "wide", "ties", "near_ties", "overflow", "tiny", "special", "zero"},
      meaning);
}

float draw_float(Floats kind, CounterRandom& random) {
  switch (kind) {
    case Floats::kWide:
      return number_of_exponent(random.between(-126, 127), random);
    case Floats::kTies:
      return tie(random);
    case Floats::kNearTies:
      return near_tie(random);
    case Floats::kOverflow:
      return overflowing(random);
    case Floats::kTiny:
      return tiny(random);
    case Floats::kSpecial:
      return special(random);
    case Floats::kZero:
      return random.once_in(4) ? -0.0f : 0.0f;
    default:
      return number_of_exponent(random.between(-6, 6), random);
  }
}

std::uint16_t draw_bf16(Floats kind, CounterRandom& random) {
  const auto code =
      static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(draw_float(kind, random)) >> 16);
  if (kind != Floats::kNearTies) return code;
  return static_cast<std::uint16_t>(code + random.between(-1, 1));
}

Tensor drawn_tensor(DType type, Layout layout, const std::function<std::uint32_t()>& draw) {
  Tensor tensor(type, std::move(layout));
  tensor.fill_bytes(kGapPoison);
  const std::vector<std::int64_t>& dims = tensor.dims();
  const std::size_t size = tensor.element_size();
  std::vector<std::int64_t> at(dims.size(), 0);
  for (std::int64_t left = tensor.layout().elements(); left > 0; --left) {
    std::int64_t offset = 0;
    for (std::size_t axis = 0; axis < dims.size(); ++axis)
      offset += at[axis] * tensor.layout().strides[axis];
    const std::uint32_t value = draw();
    std::memcpy(tensor.base() + offset * static_cast<std::int64_t>(size), &value, size);
    for (std::size_t axis = dims.size(); axis-- > 0;) {
      if (++at[axis] < dims[axis]) break;
      at[axis] = 0;
    }
  }
  return tensor;
}

Layout gapped_rows(std::int64_t rows, std::int64_t width, std::int64_t step, std::int64_t gap) {
  return Layout::strided({rows, width}, {width * step + gap, step});
}

std::uint8_t draw_code(const FloatFormat& format, bool with_nan, CounterRandom& random) {
  const auto code = static_cast<std::uint8_t>(random.bits32() & 0xFF);
  const bool nan = classify(format, code) == FloatClass::kNan;
  return nan && !with_nan ? std::uint8_t{1} : code;
}

void replace_input(Case& item, std::string_view name, Tensor tensor) {
  const auto input = std::find_if(item.inputs.begin(), item.inputs.end(),
                                  [&](const NamedTensor& known) { return known.name == name; });
  if (input != item.inputs.end()) input->tensor = std::move(tensor);
}

}  // namespace monoref
