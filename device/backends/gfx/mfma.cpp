// Matrix instructions. They ignore EXEC. Which lane and register holds which element:
// a factor's row or column is the lane modulo the rows; lanes beyond hold further blocks or, of a
// single block, further k, each lane as many as fit its registers.
#include <algorithm>

#include "device/backends/gfx/format.hpp"
#include "device/backends/gfx/matrix.hpp"
#include "device/backends/gfx/table.hpp"

namespace monoref::device::gfx {
namespace {

enum class Element : std::uint8_t { kF32, kF16, kBF16, kFp8, kBf8, kI8, kF8F6F4 };

struct Shape {
  unsigned rows, depth, blocks;  ///< rows by depth times depth by rows
  Element a, b;
};

/// How the elements of one factor lie in registers.
struct Layout {
  unsigned bits;
  const Format* format = nullptr;  ///< none: binary32
  bool in_halves = false;  ///< the second half of a lane's elements belongs to the second half of k
};

Layout layout_of(const Wave& w, Element element, unsigned code) {
  switch (element) {
    case Element::kF32:
      return {32};
    case Element::kF16:
      return {16, &kBinary16};
    case Element::kBF16:
      return {16, &kBfloat16};
    case Element::kFp8:
      return {8, w.fnuz ? &kE4M3Fnuz : &kE4M3};
    case Element::kBf8:
      return {8, w.fnuz ? &kE5M2Fnuz : &kE5M2};
    case Element::kI8:
      return {8};
    default:
      break;
  }
  // cbsz and blgp are the formats of A and B.
  switch (code) {
    case 0:
      return {8, &kE4M3, true};
    case 1:
      return {8, &kE5M2, true};
    case 4:
      return {4, &kE2M1};
    default:
      throw Unsupported{"matrix operands of format " + std::to_string(code) +
                        ", whose place in the registers is not known"};
  }
}

Factor small_factor(const Format& format, u32 bits) {
  Factor factor;
  const u32 wide = widen(format, bits);
  factor.negative = wide >> 31 != 0;
  factor.fraction = static_cast<std::int16_t>(format.fraction_bits);
  if ((wide & 0x7f800000U) == 0x7f800000U) {
    factor.kind = is_nan(wide) ? Factor::Kind::kNotANumber : Factor::Kind::kInfinite;
    return factor;
  }
  const u32 exponent = (bits & (format.sign() - 1)) >> format.fraction_bits;
  const u32 fraction = bits & ((1U << format.fraction_bits) - 1);
  const u32 magnitude = exponent == 0 ? fraction : fraction | 1U << format.fraction_bits;
  factor.significand = factor.negative ? -as_signed(magnitude) : as_signed(magnitude);
  factor.exponent = static_cast<std::int16_t>(static_cast<i32>(std::max(exponent, 1U)) -
                                              format.bias - factor.fraction);
  return factor;
}

/// One factor's element: which block, row (or column) and k.
struct Place {
  unsigned block, row, k;
};
Place place_of(const Shape& shape, const Layout& layout, unsigned lane, unsigned element) {
  const unsigned each = shape.rows * shape.depth * shape.blocks / kLanes;
  const unsigned group = lane / shape.rows;
  if (shape.blocks > 1) return {group, lane % shape.rows, element};
  const unsigned half = each / 2;
  if (layout.in_halves)
    return {
        0, lane % shape.rows,
        element < half ? half * group + element : shape.depth / 2 + half * group + element - half};
  return {0, lane % shape.rows, each * group + element};
}

/// The lane whose registers stand for a lane of B.
unsigned lane_of_b(unsigned lane, unsigned blgp) {
  switch (blgp) {
    case 0:
      return lane;
    case 1:
    case 2:
      return lane % 32 + 32 * (blgp - 1);
    case 3:
      return (lane + 16) % kLanes;
    default:
      return lane % 16 + 16 * (blgp - 4);
  }
}

/// All elements of one factor as [block][row][k], from T(bits, lane's row, k).
template <class T>
class Side {
 public:
  template <class F>
  Side(Wave& w, const Shape& shape, const Layout& layout, const Operand& operand, unsigned blgp,
       F make)
      : shape_(shape) {
    const unsigned each = shape.rows * shape.depth * shape.blocks / kLanes;
    const u32 mask = layout.bits == 32 ? ~0U : (1U << layout.bits) - 1;
    for (unsigned lane = 0; lane < kLanes; ++lane)
      for (unsigned n = 0; n < each; ++n) {
        const unsigned bit = n * layout.bits;
        const u32 word = w.row(operand.index + bit / 32)[lane_of_b(lane, blgp)];
        const Place place = place_of(shape, layout, lane, n);
        values_[(place.block * shape.rows + place.row) * shape.depth + place.k] =
            make(word >> bit % 32 & mask, place);
      }
  }
  std::span<const T> line(unsigned block, unsigned row) const {
    return std::span(values_).subspan((block * shape_.rows + row) * shape_.depth, shape_.depth);
  }

 private:
  static constexpr std::size_t kMost = 2048;
  const Shape& shape_;
  std::array<T, kMost> values_{};
};

/// Where register `n` of a lane's results lies.
struct Result {
  unsigned block, row, column;
};
Result result_of(const Shape& shape, unsigned lane, unsigned n) {
  if (shape.rows == 4) return {lane / 4, n, lane % 4};
  const unsigned of_block = shape.rows * shape.rows / kLanes;
  const unsigned in_block = n % of_block;
  if (shape.rows == 16) return {n / of_block, 4 * (lane / 16) + in_block, lane % 16};
  return {n / of_block, 8 * (in_block / 4) + 4 * (lane / 32) + in_block % 4, lane % 32};
}

/// Writes f(block of A, block, row, column, what C has there) to all results.
template <class F>
void write_results(Wave& w, const Inst& i, const Shape& shape, F f) {
  const unsigned count = shape.rows * shape.rows * shape.blocks / kLanes;
  std::array<Lanes, 32> out;
  // A block of A may stand for its neighbours.
  const bool formats = shape.a == Element::kF8F6F4;
  const unsigned shared = formats ? 0 : (1U << i.cbsz) - 1;
  for (unsigned n = 0; n < count; ++n) {
    Lanes space;
    const Operand& c = i.src[2];
    const u32* const before = source(w, i, 2, space, c.kind == OperandKind::kConstant ? 0 : n);
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      const Result at = result_of(shape, lane, n);
      const unsigned block_of_a = shared == 0 ? at.block : (at.block & ~shared) + i.abid;
      out[n].at[lane] = f(block_of_a, at, before[lane]);
    }
  }
  for (unsigned n = 0; n < count; ++n)
    std::memcpy(w.row(i.dst[0].index + n), out[n].at.data(), sizeof out[n].at);
}

/// The byte of a scale operand that op_sel and op_sel_hi choose: scales lie in the lane of their
/// row, those of the next 32 k in as many lanes further on.
class Scales {
 public:
  Scales(Wave& w, const Inst& i, const Shape& shape, unsigned side) : rows_(shape.rows) {
    if (i.sources < 5) return;
    used_ = true;
    const unsigned byte = (i.op_sel >> side & 1U) + 2 * (i.op_sel_hi >> side & 1U);
    Lanes space;
    const u32* const words = source(w, i, 3 + side, space);
    for (unsigned lane = 0; lane < kLanes; ++lane)
      codes_[lane] = static_cast<std::uint8_t>(words[lane] >> (8 * byte));
  }
  /// The factor times its scale, a power of two.
  Factor scaled(Factor factor, const Place& place) const {
    if (!used_) return factor;
    constexpr unsigned kGroup = 32;
    const std::uint8_t code = codes_[place.row + rows_ * (place.k / kGroup)];
    if (code == 0xff) factor.kind = Factor::Kind::kNotANumber;
    factor.exponent = static_cast<std::int16_t>(factor.exponent + code - 127);
    return factor;
  }

 private:
  unsigned rows_;
  bool used_ = false;
  std::array<std::uint8_t, kLanes> codes_{};
};

template <Shape kShape>
void numbers(Wave& w, const Inst& i) {
  constexpr bool kFormats = kShape.a == Element::kF8F6F4;
  const Layout a_layout = layout_of(w, kShape.a, i.cbsz);
  const Layout b_layout = layout_of(w, kShape.b, i.blgp);
  const auto maker = [](const Layout& layout, const Scales& scales) {
    return [&](u32 bits, const Place& place) {
      return layout.format == nullptr ? factor_of(bits)
                                      : scales.scaled(small_factor(*layout.format, bits), place);
    };
  };
  const Scales a_scales(w, i, kShape, 0);
  const Scales b_scales(w, i, kShape, 1);
  const Side<Factor> a(w, kShape, a_layout, i.src[0], 0, maker(a_layout, a_scales));
  const Side<Factor> b(w, kShape, b_layout, i.src[1], kFormats ? 0 : i.blgp,
                       maker(b_layout, b_scales));
  const bool eights = a_layout.bits <= 8;
  const bool halves = a_layout.bits == 16;
  w.observed->has_float_matrix = true;
  write_results(w, i, kShape, [&](unsigned block_of_a, const Result& at, u32 c) {
    return dot(w.matrix,
               {a.line(block_of_a, at.row), b.line(at.block, at.column), c, eights, halves});
  });
}

template <Shape kShape>
void whole_numbers(Wave& w, const Inst& i) {
  const Layout layout = layout_of(w, kShape.a, 0);
  const auto signed_byte = [](u32 bits, const Place&) { return static_cast<std::int8_t>(bits); };
  const Side<std::int8_t> a(w, kShape, layout, i.src[0], 0, signed_byte);
  const Side<std::int8_t> b(w, kShape, layout, i.src[1], i.blgp, signed_byte);
  write_results(w, i, kShape, [&](unsigned block_of_a, const Result& at, u32 c) {
    const auto row = a.line(block_of_a, at.row);
    const auto column = b.line(at.block, at.column);
    for (std::size_t k = 0; k < row.size(); ++k) c += static_cast<u32>(row[k] * column[k]);
    return c;
  });
}

// clang-format off
#define MONOREF_FP8_PAIRS(prefix, rows, depth)                                                \
  {prefix "_fp8_fp8", numbers<Shape{rows, depth, 1, Element::kFp8, Element::kFp8}>},          \
  {prefix "_fp8_bf8", numbers<Shape{rows, depth, 1, Element::kFp8, Element::kBf8}>},          \
  {prefix "_bf8_fp8", numbers<Shape{rows, depth, 1, Element::kBf8, Element::kFp8}>},          \
  {prefix "_bf8_bf8", numbers<Shape{rows, depth, 1, Element::kBf8, Element::kBf8}>}

constexpr Element kF32 = Element::kF32, kF16 = Element::kF16, kBF16 = Element::kBF16,
                  kI8 = Element::kI8, kF8F6F4 = Element::kF8F6F4;

constexpr Entry kTable[] = {
    {"v_mfma_f32_32x32x1_2b_f32", numbers<Shape{32, 1, 2, kF32, kF32}>},
    {"v_mfma_f32_16x16x1_4b_f32", numbers<Shape{16, 1, 4, kF32, kF32}>},
    {"v_mfma_f32_4x4x1_16b_f32", numbers<Shape{4, 1, 16, kF32, kF32}>},
    {"v_mfma_f32_32x32x2_f32", numbers<Shape{32, 2, 1, kF32, kF32}>},
    {"v_mfma_f32_16x16x4_f32", numbers<Shape{16, 4, 1, kF32, kF32}>},
    {"v_mfma_f32_32x32x4_2b_f16", numbers<Shape{32, 4, 2, kF16, kF16}>},
    {"v_mfma_f32_16x16x4_4b_f16", numbers<Shape{16, 4, 4, kF16, kF16}>},
    {"v_mfma_f32_4x4x4_16b_f16", numbers<Shape{4, 4, 16, kF16, kF16}>},
    {"v_mfma_f32_32x32x8_f16", numbers<Shape{32, 8, 1, kF16, kF16}>},
    {"v_mfma_f32_16x16x16_f16", numbers<Shape{16, 16, 1, kF16, kF16}>},
    {"v_mfma_f32_32x32x16_f16", numbers<Shape{32, 16, 1, kF16, kF16}>},
    {"v_mfma_f32_16x16x32_f16", numbers<Shape{16, 32, 1, kF16, kF16}>},
    {"v_mfma_f32_32x32x4_2b_bf16", numbers<Shape{32, 4, 2, kBF16, kBF16}>},
    {"v_mfma_f32_16x16x4_4b_bf16", numbers<Shape{16, 4, 4, kBF16, kBF16}>},
    {"v_mfma_f32_4x4x4_16b_bf16", numbers<Shape{4, 4, 16, kBF16, kBF16}>},
    {"v_mfma_f32_32x32x8_bf16", numbers<Shape{32, 8, 1, kBF16, kBF16}>},
    {"v_mfma_f32_16x16x16_bf16", numbers<Shape{16, 16, 1, kBF16, kBF16}>},
    {"v_mfma_f32_32x32x16_bf16", numbers<Shape{32, 16, 1, kBF16, kBF16}>},
    {"v_mfma_f32_16x16x32_bf16", numbers<Shape{16, 32, 1, kBF16, kBF16}>},
    MONOREF_FP8_PAIRS("v_mfma_f32_32x32x16", 32, 16),
    MONOREF_FP8_PAIRS("v_mfma_f32_16x16x32", 16, 32),
    {"v_mfma_f32_16x16x128_f8f6f4", numbers<Shape{16, 128, 1, kF8F6F4, kF8F6F4}>},
    {"v_mfma_f32_32x32x64_f8f6f4", numbers<Shape{32, 64, 1, kF8F6F4, kF8F6F4}>},
    {"v_mfma_scale_f32_16x16x128_f8f6f4", numbers<Shape{16, 128, 1, kF8F6F4, kF8F6F4}>},
    {"v_mfma_scale_f32_32x32x64_f8f6f4", numbers<Shape{32, 64, 1, kF8F6F4, kF8F6F4}>},
    {"v_mfma_i32_32x32x4_2b_i8", whole_numbers<Shape{32, 4, 2, kI8, kI8}>},
    {"v_mfma_i32_16x16x4_4b_i8", whole_numbers<Shape{16, 4, 4, kI8, kI8}>},
    {"v_mfma_i32_4x4x4_16b_i8", whole_numbers<Shape{4, 4, 16, kI8, kI8}>},
    {"v_mfma_i32_32x32x16_i8", whole_numbers<Shape{32, 16, 1, kI8, kI8}>},
    {"v_mfma_i32_16x16x32_i8", whole_numbers<Shape{16, 32, 1, kI8, kI8}>},
    {"v_mfma_i32_32x32x32_i8", whole_numbers<Shape{32, 32, 1, kI8, kI8}>},
    {"v_mfma_i32_16x16x64_i8", whole_numbers<Shape{16, 64, 1, kI8, kI8}>},
};
// clang-format on

}  // namespace

std::span<const Entry> mfma_table() {
  return kTable;
}

}  // namespace monoref::device::gfx
