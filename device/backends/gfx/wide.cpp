// Instructions on binary64 in VOP1, VOP2 and VOP3.
#include <algorithm>

#include "device/backends/gfx/format.hpp"
#include "device/backends/gfx/table.hpp"

namespace monoref::device::gfx {
namespace {

constexpr u64 kWideSign = u64{1} << 63;
constexpr u64 kWideQuiet = u64{1} << 51;
constexpr u64 kWideNan = 0x7ff8000000000000;

u64 wide_bits(double value) {
  return std::bit_cast<u64>(value);
}
bool is_wide_nan(u64 bits) {
  return (bits & ~kWideSign) > 0x7ff0000000000000;
}

/// A source of binary64 with its modifiers.
WideRow wide_number(Wave& w, const Inst& i, unsigned n, WideLanes& space) {
  const Operand& operand = i.src[n];
  const WideRow row = wide_source(w, i, n, space);
  if (!operand.negate && !operand.absolute) return row;
  std::memmove(space.low.at.data(), row.low, sizeof space.low.at);
  const u32 keep = operand.absolute ? 0x7fffffffU : ~0U;
  const u32 flip = operand.negate ? 0x80000000U : 0;
  MONOREF_EACH_LANE(l) space.high.at[l] = (row.high[l] & keep) ^ flip;
  return {space.low.at.data(), space.high.at.data()};
}
/// A result; a NaN that is none of the sources' is the default one.
u64 wide_result(double value, u64 a, u64 b = 0, u64 c = 0) {
  if (value == value) return wide_bits(value);
  if (is_wide_nan(a)) return a | kWideQuiet;
  if (is_wide_nan(b)) return b | kWideQuiet;
  return is_wide_nan(c) ? c | kWideQuiet : kWideNan;
}
void check_wide_mode(const Wave& w, const Inst& i) {
  if (w.mode.round64 != w.mode.round32 || w.mode.denorm64 != 3)
    throw Unsupported{"binary64 under a mode of its own"};
  if (i.clamp || i.output_modifier != 0) throw Unsupported{"output modifiers of binary64"};
}

template <unsigned kSources, auto F>
void wide_numbers(Wave& w, const Inst& i) {
  check_wide_mode(w, i);
  std::array<WideLanes, 3> space;
  std::array<WideRow, 3> s{};
  for (unsigned n = 0; n < kSources; ++n) s[n] = wide_number(w, i, n, space[n]);
  std::array<u64, kLanes> out{};
  for (unsigned l = 0; l < kLanes; ++l) {
    if constexpr (kSources == 1)
      out[l] = F(s[0][l]);
    else if constexpr (kSources == 2)
      out[l] = F(s[0][l], s[1][l]);
    else
      out[l] = F(s[0][l], s[1][l], s[2][l]);
  }
  write_wide(w, i, [&](unsigned l) { return out[l]; });
}
/// The destination is a source, too.
void v_fmac_f64(Wave& w, const Inst& i) {
  Inst with_third = i;
  with_third.src[2] = i.dst[0];
  wide_numbers<3, [](u64 a, u64 b, u64 c) {
    return wide_result(__builtin_fma(as_double(a), as_double(b), as_double(c)), a, b, c);
  }>(w, with_third);
}
template <auto F>
constexpr Handler kOne = wide_numbers<1, [](u64 a) { return wide_result(F(as_double(a)), a); }>;

u64 smaller(u64 a, u64 b) {
  if (is_wide_nan(a)) return is_wide_nan(b) ? a | kWideQuiet : b;
  const double x = as_double(a), y = as_double(b);
  return is_wide_nan(b) || x < y || (x == y && (a & kWideSign) != 0) ? a : b;
}
u64 larger(u64 a, u64 b) {
  if (is_wide_nan(a)) return is_wide_nan(b) ? a | kWideQuiet : b;
  const double x = as_double(a), y = as_double(b);
  return is_wide_nan(b) || x > y || (x == y && (a & kWideSign) == 0) ? a : b;
}

// Conversions: 32 bits on one side, 64 on the other.
template <auto F>
void to_wide(Wave& w, const Inst& i) {
  Lanes space;
  const u32* const a = source(w, i, 0, space);
  std::array<u32, kLanes> copy;
  std::memcpy(copy.data(), a, sizeof copy);
  write_wide(w, i, [&](unsigned l) { return wide_bits(F(copy[l])); });
}
void v_cvt_f64_f32(Wave& w, const Inst& i) {
  Lanes space, copy;
  std::memcpy(copy.at.data(), float_source(w, i, 0, space), sizeof copy.at);
  write_wide(w, i, [&](unsigned l) {
    return wide_bits(is_nan(copy.at[l]) ? as_float(copy.at[l] | kQuiet) : as_float(copy.at[l]));
  });
}
void v_cvt_f32_f64(Wave& w, const Inst& i) {
  WideLanes space;
  Lanes out;
  const WideRow a = wide_number(w, i, 0, space);
  for (unsigned l = 0; l < kLanes; ++l) out.at[l] = as_bits(static_cast<float>(as_double(a[l])));
  write_float_row(w, i, out);
}
template <auto F>
void from_wide(Wave& w, const Inst& i) {
  WideLanes space;
  Lanes out;
  const WideRow a = wide_number(w, i, 0, space);
  for (unsigned l = 0; l < kLanes; ++l) out.at[l] = F(as_double(a[l]));
  write_row(w, i, i.dst[0].index, out);
}
u32 whole_signed(double x) {
  if (x != x) return 0;
  return static_cast<u32>(static_cast<i32>(std::clamp(x, -0x1p31, 0x1p31 - 1)));
}
u32 whole_unsigned(double x) {
  return x > 0 ? static_cast<u32>(std::min(x, 0x1p32 - 1)) : 0;
}
void v_ldexp_f64(Wave& w, const Inst& i) {
  check_wide_mode(w, i);
  WideLanes space;
  Lanes by_space;
  const WideRow a = wide_number(w, i, 0, space);
  const u32* const by = source(w, i, 1, by_space);
  std::array<u64, kLanes> out{};
  for (unsigned l = 0; l < kLanes; ++l)
    out[l] = wide_result(std::ldexp(as_double(a[l]), as_signed(by[l])), a[l]);
  write_wide(w, i, [&](unsigned l) { return out[l]; });
}

constexpr Entry kTable[] = {
    {"v_cvt_f64_f32", v_cvt_f64_f32},
    {"v_cvt_f64_i32", to_wide<[](u32 x) { return static_cast<double>(as_signed(x)); }>},
    {"v_cvt_f64_u32", to_wide<[](u32 x) { return static_cast<double>(x); }>},
    {"v_cvt_f32_f64", v_cvt_f32_f64, 1, Type::kF64},
    {"v_cvt_i32_f64", from_wide<whole_signed>, 1, Type::kF64},
    {"v_cvt_u32_f64", from_wide<whole_unsigned>, 1, Type::kF64},
    {"v_trunc_f64", kOne<[](double x) { return std::trunc(x); }>, 1, Type::kF64},
    {"v_floor_f64", kOne<[](double x) { return std::floor(x); }>, 1, Type::kF64},
    {"v_ceil_f64", kOne<[](double x) { return std::ceil(x); }>, 1, Type::kF64},
    {"v_rndne_f64", kOne<[](double x) { return std::nearbyint(x); }>, 1, Type::kF64},
    {"v_add_f64",
     wide_numbers<2, [](u64 a, u64 b) { return wide_result(as_double(a) + as_double(b), a, b); }>,
     1, Type::kF64},
    {"v_mul_f64",
     wide_numbers<2, [](u64 a, u64 b) { return wide_result(as_double(a) * as_double(b), a, b); }>,
     1, Type::kF64},
    {"v_min_f64", wide_numbers<2, smaller>, 1, Type::kF64},
    {"v_max_f64", wide_numbers<2, larger>, 1, Type::kF64},
    {"v_fma_f64",
     wide_numbers<3,
                  [](u64 a, u64 b, u64 c) {
                    return wide_result(__builtin_fma(as_double(a), as_double(b), as_double(c)), a,
                                       b, c);
                  }>,
     1, Type::kF64},
    {"v_fmac_f64", v_fmac_f64, 1, Type::kF64},
    {"v_ldexp_f64", v_ldexp_f64, 1, Type::kF64},
};

}  // namespace

std::span<const Entry> wide_table() {
  return kTable;
}

}  // namespace monoref::device::gfx
