// Comparisons: a bit a lane. v_cmpx writes EXEC, too.
#include "device/backends/gfx/half.hpp"
#include "device/backends/gfx/table.hpp"

namespace monoref::device::gfx {
namespace {

void write_bits(Wave& w, const Inst& i, const Lanes& truths, bool to_exec) {
  const u64 bits = pack_lanes(truths.at.data()) & written_lanes(w, i);
  set_scalar64(w, i.dst[0], bits);
  if (to_exec) w.set_pair(kExec, bits);
}

template <auto F, auto View, bool kToExec>
void compare(Wave& w, const Inst& i) {
  Lanes sa, sb, truths;
  const u32* const a = source(w, i, 0, sa);
  const u32* const b = source(w, i, 1, sb);
  MONOREF_EACH_LANE(l) truths.at[l] = F(View(a[l]), View(b[l])) ? ~0U : 0;
  write_bits(w, i, truths, kToExec);
}
template <auto F, bool kToExec>
void compare_float(Wave& w, const Inst& i) {
  Lanes sa, sb, truths;
  const u32* const a = float_source(w, i, 0, sa);
  const u32* const b = float_source(w, i, 1, sb);
  MONOREF_EACH_LANE(l) truths.at[l] = F(as_float(a[l]), as_float(b[l])) ? ~0U : 0;
  write_bits(w, i, truths, kToExec);
}
template <auto F, auto View, bool kToExec>
void compare_wide(Wave& w, const Inst& i) {
  WideLanes sa, sb;
  Lanes truths;
  const WideRow a = wide_source(w, i, 0, sa);
  const WideRow b = wide_source(w, i, 1, sb);
  MONOREF_EACH_LANE(l) truths.at[l] = F(View(a[l]), View(b[l])) ? ~0U : 0;
  write_bits(w, i, truths, kToExec);
}
template <auto F, bool kToExec>
void compare_half(Wave& w, const Inst& i) {
  Lanes sa, sb, truths;
  half_number_row(w, i, 0, false, i.src[0].negate, i.src[0].absolute, sa);
  half_number_row(w, i, 1, false, i.src[1].negate, i.src[1].absolute, sb);
  for (unsigned l = 0; l < kLanes; ++l) {
    const float a = as_float(widen(kBinary16, sa.at[l]));
    const float b = as_float(widen(kBinary16, sb.at[l]));
    truths.at[l] = F(a, b) ? ~0U : 0;
  }
  write_bits(w, i, truths, kToExec);
}
template <auto F, bool kToExec>
void compare_double(Wave& w, const Inst& i) {
  WideLanes sa, sb;
  Lanes truths;
  const WideRow a = wide_source(w, i, 0, sa);
  const WideRow b = wide_source(w, i, 1, sb);
  const auto number = [](u64 bits, const Operand& operand) {
    const u64 kept = operand.absolute ? bits & ~(u64{1} << 63) : bits;
    return as_double(kept ^ (operand.negate ? u64{1} << 63 : 0));
  };
  for (unsigned l = 0; l < kLanes; ++l)
    truths.at[l] = F(number(a[l], i.src[0]), number(b[l], i.src[1])) ? ~0U : 0;
  write_bits(w, i, truths, kToExec);
}
template <bool kToExec>
void compare_class(Wave& w, const Inst& i) {
  Lanes sa, sb, truths;
  const u32* const a = float_source(w, i, 0, sa);
  const u32* const b = source(w, i, 1, sb);
  for (unsigned l = 0; l < kLanes; ++l) truths.at[l] = (class_of(a[l]) & b[l]) != 0 ? ~0U : 0;
  write_bits(w, i, truths, kToExec);
}

// How the bits of a source are read.
constexpr auto kSigned16 = [](u32 x) { return static_cast<i16>(x); };
constexpr auto kUnsigned16 = [](u32 x) { return static_cast<u16>(x); };
constexpr auto kSigned = [](auto x) { return as_signed(x); };
constexpr auto kUnsigned = [](auto x) { return x; };

constexpr auto kNever = [](auto, auto) { return false; };
constexpr auto kLess = [](auto a, auto b) { return a < b; };
constexpr auto kEqual = [](auto a, auto b) { return a == b; };
constexpr auto kLessEqual = [](auto a, auto b) { return a <= b; };
constexpr auto kGreater = [](auto a, auto b) { return a > b; };
constexpr auto kOther = [](auto a, auto b) { return a != b; };
constexpr auto kGreaterEqual = [](auto a, auto b) { return a >= b; };
constexpr auto kAlways = [](auto, auto) { return true; };
// Of numbers that may be NaN.
constexpr auto kLessGreater = [](auto a, auto b) { return a < b || a > b; };
constexpr auto kOrdered = [](auto a, auto b) { return a == a && b == b; };
constexpr auto kUnordered = [](auto a, auto b) { return a != a || b != b; };
constexpr auto kNotGreaterEqual = [](auto a, auto b) { return !(a >= b); };
constexpr auto kNotLessGreater = [](auto a, auto b) { return !(a < b || a > b); };
constexpr auto kNotGreater = [](auto a, auto b) { return !(a > b); };
constexpr auto kNotLessEqual = [](auto a, auto b) { return !(a <= b); };
constexpr auto kNotEqual = [](auto a, auto b) { return !(a == b); };
constexpr auto kNotLess = [](auto a, auto b) { return !(a < b); };

// clang-format off
// One line a comparison: v_cmp and v_cmpx of it.
#define MONOREF_WHOLE(name, kind, condition, view, type)                 \
  {"v_cmp_" name, kind<condition, view, false>, 1, type},                \
  {"v_cmpx_" name, kind<condition, view, true>, 1, type}
#define MONOREF_WHOLE_ALL(suffix, kind, view, type)                      \
  MONOREF_WHOLE("f_" suffix, kind, kNever, view, type),                  \
  MONOREF_WHOLE("lt_" suffix, kind, kLess, view, type),                  \
  MONOREF_WHOLE("eq_" suffix, kind, kEqual, view, type),                 \
  MONOREF_WHOLE("le_" suffix, kind, kLessEqual, view, type),             \
  MONOREF_WHOLE("gt_" suffix, kind, kGreater, view, type),               \
  MONOREF_WHOLE("ne_" suffix, kind, kOther, view, type),                 \
  MONOREF_WHOLE("ge_" suffix, kind, kGreaterEqual, view, type),          \
  MONOREF_WHOLE("t_" suffix, kind, kAlways, view, type)
#define MONOREF_FLOAT(name, condition)                                             \
  {"v_cmp_" name "_f32", compare_float<condition, false>},                         \
  {"v_cmpx_" name "_f32", compare_float<condition, true>},                         \
  {"v_cmp_" name "_f16", compare_half<condition, false>, 1, Type::kB16},           \
  {"v_cmpx_" name "_f16", compare_half<condition, true>, 1, Type::kB16},           \
  {"v_cmp_" name "_f64", compare_double<condition, false>, 1, Type::kF64},         \
  {"v_cmpx_" name "_f64", compare_double<condition, true>, 1, Type::kF64}

constexpr Entry kTable[] = {
    MONOREF_WHOLE_ALL("i32", compare, kSigned, Type::kB32),
    MONOREF_WHOLE_ALL("u32", compare, kUnsigned, Type::kB32),
    MONOREF_WHOLE_ALL("i16", compare, kSigned16, Type::kB16),
    MONOREF_WHOLE_ALL("u16", compare, kUnsigned16, Type::kB16),
    MONOREF_WHOLE_ALL("i64", compare_wide, kSigned, Type::kB64),
    MONOREF_WHOLE_ALL("u64", compare_wide, kUnsigned, Type::kB64),
    MONOREF_FLOAT("f", kNever),
    MONOREF_FLOAT("lt", kLess),
    MONOREF_FLOAT("eq", kEqual),
    MONOREF_FLOAT("le", kLessEqual),
    MONOREF_FLOAT("gt", kGreater),
    MONOREF_FLOAT("lg", kLessGreater),
    MONOREF_FLOAT("ge", kGreaterEqual),
    MONOREF_FLOAT("o", kOrdered),
    MONOREF_FLOAT("u", kUnordered),
    MONOREF_FLOAT("nge", kNotGreaterEqual),
    MONOREF_FLOAT("nlg", kNotLessGreater),
    MONOREF_FLOAT("ngt", kNotGreater),
    MONOREF_FLOAT("nle", kNotLessEqual),
    MONOREF_FLOAT("neq", kNotEqual),
    MONOREF_FLOAT("nlt", kNotLess),
    MONOREF_FLOAT("tru", kAlways),
    {"v_cmp_class_f32", compare_class<false>},
    {"v_cmpx_class_f32", compare_class<true>},
};
// clang-format on

}  // namespace

std::span<const Entry> vopc_table() {
  return kTable;
}

}  // namespace monoref::device::gfx
