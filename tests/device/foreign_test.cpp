// Instructions of gfx942 and gfx950, one kernel each, held against LLVM's APFloat and plain C++: at
// least 2,000 operands an instruction, special values among them, under changing masks of lanes.
#include <gtest/gtest.h>
#include <llvm/ADT/APFloat.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <random>

#include "device/backends/gfx/backend.hpp"
#include "device/backends/gfx/inspect.hpp"
#include "tests/device/launcher.hpp"

namespace monoref::device {
namespace {

using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i32 = std::int32_t;
__extension__ typedef __int128 Fixed;  // NOLINT(modernize-use-using): no pedantic alias
using llvm::APFloat;
using llvm::APInt;

constexpr unsigned kLanes = 64;
constexpr unsigned kWaves = 40;  ///< 2,560 operands

const llvm::fltSemantics& half() {
  return APFloat::IEEEhalf();
}
const llvm::fltSemantics& single() {
  return APFloat::IEEEsingle();
}
APFloat number(const llvm::fltSemantics& format, u64 bits) {
  return {format, APInt(APFloat::getSizeInBits(format), bits, false, true)};
}
u32 bits_of(const APFloat& value) {
  return static_cast<u32>(value.bitcastToAPInt().getZExtValue());
}
/// Rounded to another format, once.
APFloat rounded(APFloat value, const llvm::fltSemantics& to,
                APFloat::roundingMode mode = APFloat::rmNearestTiesToEven) {
  bool loses = false;
  value.convert(to, mode, &loses);
  return value;
}
u32 convert(const llvm::fltSemantics& from, u32 bits, const llvm::fltSemantics& to) {
  return bits_of(rounded(number(from, bits), to));
}
u32 fma_bits(const llvm::fltSemantics& format, u32 a, u32 b, u32 c) {
  APFloat value = number(format, a);
  value.fusedMultiplyAdd(number(format, b), number(format, c), APFloat::rmNearestTiesToEven);
  return bits_of(value);
}
/// A sum of factors whose product binary64 holds, rounded to `to` once.
u32 mixed_fma(APFloat a, APFloat b, APFloat c, const llvm::fltSemantics& to) {
  const llvm::fltSemantics& wide = APFloat::IEEEquad();
  APFloat value = rounded(a, wide);
  value.fusedMultiplyAdd(rounded(b, wide), rounded(c, wide), APFloat::rmTowardZero);
  // What quad precision cuts off goes into its last bit, so that the second rounding is right.
  APFloat exact = rounded(a, wide);
  const bool inexact =
      (exact.fusedMultiplyAdd(rounded(b, wide), rounded(c, wide), APFloat::rmTowardZero) &
       APFloat::opInexact) != 0;
  if (inexact) {
    APInt pattern = value.bitcastToAPInt();
    pattern.setBit(0);
    value = APFloat(wide, pattern);
  }
  return bits_of(rounded(value, to));
}
u32 low(u32 x) {
  return x & 0xffff;
}
u32 high(u32 x) {
  return x >> 16;
}
u32 byte(u32 x, unsigned n) {
  return x >> (8 * n) & 0xff;
}

/// The operands of one wave, and what the results' place held.
struct Row {
  std::array<u32, kLanes> a{}, b{}, c{}, before{};
  u64 mask = 0;
};
/// What a lane's result must be.
using Meaning = std::function<u32(const Row&, unsigned lane)>;

enum class Kind : std::uint8_t { kBits, kSingle, kHalf, kPackedHalf };

struct Instruction {
  const char* name;
  Meaning meaning;
  Kind kind = Kind::kBits;  ///< of the result: NaNs are equal whatever their bits
  bool only_gfx950 = false;
};

Meaning of(const std::function<u32(u32, u32, u32, u32)>& f) {
  return [f](const Row& row, unsigned l) { return f(row.a[l], row.b[l], row.c[l], row.before[l]); };
}

/// FP8 of a chip: gfx942 has another.
const llvm::fltSemantics& fp8(const std::string& chip) {
  return chip == "gfx942" ? APFloat::Float8E4M3FNUZ() : APFloat::Float8E4M3FN();
}
const llvm::fltSemantics& bf8(const std::string& chip) {
  return chip == "gfx942" ? APFloat::Float8E5M2FNUZ() : APFloat::Float8E5M2();
}
/// Two numbers side by side.
u32 pair(u32 first, u32 second, unsigned width) {
  return first | second << width;
}
/// In IEEE mode a signalling NaN makes the result one; quiet ones give way to a number.
u32 smallest(u32 a, u32 b) {
  if (number(single(), a).isSignaling() || number(single(), b).isSignaling()) return 0x7fc00000;
  return bits_of(llvm::minimumnum(number(single(), a), number(single(), b)));
}
u32 largest(u32 a, u32 b) {
  if (number(single(), a).isSignaling() || number(single(), b).isSignaling()) return 0x7fc00000;
  return bits_of(llvm::maximumnum(number(single(), a), number(single(), b)));
}
u32 three(u32 a, u32 b, u32 c, APFloat (*f)(const APFloat&, const APFloat&)) {
  return bits_of(f(f(number(single(), a), number(single(), b)), number(single(), c)));
}
/// 2^(exponent of a binary32): a scale.
APFloat power(u32 scale) {
  return number(single(), scale & 0x7f800000U);
}
u32 scaled_down(u32 x, u32 scale, const llvm::fltSemantics& to) {
  APFloat value = rounded(number(single(), x), APFloat::IEEEdouble());
  value.divide(rounded(power(scale), APFloat::IEEEdouble()), APFloat::rmNearestTiesToEven);
  return bits_of(rounded(value, to));
}

std::vector<Instruction> whole_number_instructions() {
  const auto s16 = [](u32 x) { return static_cast<i32>(static_cast<std::int16_t>(x)); };
  return {
      {"v_add_u32", of([](u32 a, u32 b, u32, u32) { return a + b; })},
      {"v_mul_lo_u32", of([](u32 a, u32 b, u32, u32) { return a * b; })},
      {"v_mul_hi_i32", of([](u32 a, u32 b, u32, u32) {
         return static_cast<u32>(std::int64_t{static_cast<i32>(a)} * static_cast<i32>(b) >> 32);
       })},
      {"v_alignbit_b32", of([](u32 a, u32 b, u32 c, u32) {
         const u32 by = c % 32;
         return by == 0 ? b : b >> by | a << (32 - by);
       })},
      {"v_bfe_i32", of([](u32 a, u32 b, u32 c, u32) {
         const u32 from = b % 32, width = c % 32;
         u32 value = 0;
         for (u32 bit = 0; bit < 32 && width > 0; ++bit) {
           const u32 at = std::min(from + std::min(bit, width - 1), 31U);
           value |= (a >> at & 1) << bit;
         }
         return value;
       })},
      {"v_pk_add_u16",
       of([](u32 a, u32 b, u32, u32) { return pair(low(a + b), low(high(a) + high(b)), 16); })},
      {"v_pk_mul_lo_u16", of([](u32 a, u32 b, u32, u32) {
         return pair(low(low(a) * low(b)), low(high(a) * high(b)), 16);
       })},
      {"v_pk_ashrrev_i16", of([s16](u32 a, u32 b, u32, u32) {
         return pair(low(static_cast<u32>(s16(b) >> (a & 15))),
                     low(static_cast<u32>(s16(high(b)) >> (high(a) & 15))), 16);
       })},
      {"v_pk_max_i16", of([s16](u32 a, u32 b, u32, u32) {
         return pair(low(static_cast<u32>(std::max(s16(a), s16(b)))),
                     low(static_cast<u32>(std::max(s16(high(a)), s16(high(b))))), 16);
       })},
      {"v_cmp_gt_i16", of([s16](u32 a, u32 b, u32, u32) { return s16(a) > s16(b) ? 1U : 0U; })},
      {"v_mov_b32_dpp_row_shr",
       [](const Row& row, unsigned l) {
         const bool there = l % 16 >= 3 && (row.mask >> (l - 3) & 1) != 0;
         return there ? row.a[l - 3] : 0;
       }},
      {"v_add_u32_dpp_quad",
       [](const Row& row, unsigned l) {
         constexpr std::array<unsigned, 4> kFrom{3, 1, 0, 2};
         const unsigned from = l / 4 * 4 + kFrom[l % 4];
         return (row.mask >> from & 1) != 0 ? row.a[from] + row.b[l] : row.before[l];
       }},
  };
}

std::vector<Instruction> single_instructions() {
  return {
      {"v_add_f32", of([](u32 a, u32 b, u32, u32) {
         return bits_of(number(single(), a) + number(single(), b));
       }),
       Kind::kSingle},
      {"v_mul_f32", of([](u32 a, u32 b, u32, u32) {
         return bits_of(number(single(), a) * number(single(), b));
       }),
       Kind::kSingle},
      {"v_fma_f32", of([](u32 a, u32 b, u32 c, u32) { return fma_bits(single(), a, b, c); }),
       Kind::kSingle},
      {"v_fma_f32_negated", of([](u32 a, u32 b, u32 c, u32) {
         return fma_bits(single(), a ^ 0x80000000U, b & 0x7fffffffU, c);
       }),
       Kind::kSingle},
      {"v_min_f32", of([](u32 a, u32 b, u32, u32) { return smallest(a, b); }), Kind::kSingle},
      {"v_max3_f32", of([](u32 a, u32 b, u32 c, u32) { return largest(largest(a, b), c); }),
       Kind::kSingle},
      {"v_maximum3_f32", of([](u32 a, u32 b, u32 c, u32) { return three(a, b, c, llvm::maximum); }),
       Kind::kSingle, true},
      {"v_minimum3_f32", of([](u32 a, u32 b, u32 c, u32) { return three(a, b, c, llvm::minimum); }),
       Kind::kSingle, true},
      {"v_cmp_le_f32", of([](u32 a, u32 b, u32, u32) {
         return number(single(), a) <= number(single(), b) ? 1U : 0U;
       })},
  };
}

std::vector<Instruction> half_instructions() {
  return {
      {"v_add_f16", of([](u32 a, u32 b, u32, u32) {
         return bits_of(number(half(), low(a)) + number(half(), low(b)));
       }),
       Kind::kHalf},
      {"v_mul_f16", of([](u32 a, u32 b, u32, u32) {
         return bits_of(number(half(), low(a)) * number(half(), low(b)));
       }),
       Kind::kHalf},
      {"v_fma_f16", of([](u32 a, u32 b, u32 c, u32 before) {
         return pair(fma_bits(half(), low(a), low(b), low(c)), high(before), 16);
       }),
       Kind::kPackedHalf},
      {"v_fma_f16_high", of([](u32 a, u32 b, u32 c, u32 before) {
         return pair(low(before), fma_bits(half(), high(a), low(b), high(c)), 16);
       }),
       Kind::kPackedHalf},
      {"v_pk_add_f16", of([](u32 a, u32 b, u32, u32) {
         return pair(bits_of(number(half(), low(a)) + number(half(), low(b))),
                     bits_of(number(half(), high(a)) + number(half(), high(b))), 16);
       }),
       Kind::kPackedHalf},
      {"v_pk_fma_f16", of([](u32 a, u32 b, u32 c, u32) {
         return pair(fma_bits(half(), low(a), high(b), low(c)),
                     fma_bits(half(), high(a) ^ 0x8000, low(b), high(c)), 16);
       }),
       Kind::kPackedHalf},
      {"v_cmp_lt_f16", of([](u32 a, u32 b, u32, u32) {
         return number(half(), low(a)) < number(half(), low(b)) ? 1U : 0U;
       })},
      {"v_cmp_nge_f16", of([](u32 a, u32 b, u32, u32) {
         return number(half(), low(a)) >= number(half(), low(b)) ? 0U : 1U;
       })},
  };
}

std::vector<Instruction> conversions(const std::string& chip) {
  const auto& e4m3 = fp8(chip);
  const auto& e5m2 = bf8(chip);
  const auto half_of = [](u32 x) { return convert(single(), x, half()); };
  const auto cut = [](u32 x) {
    return bits_of(rounded(number(single(), x), half(), APFloat::rmTowardZero));
  };
  const auto bfloat = [](u32 x) { return convert(single(), x, APFloat::BFloat()); };
  return {
      {"v_cvt_f32_f16", of([](u32 a, u32, u32, u32) { return convert(half(), low(a), single()); }),
       Kind::kSingle},
      {"v_cvt_f32_f16_word1",
       of([](u32 a, u32, u32, u32) { return convert(half(), high(a), single()); }), Kind::kSingle},
      {"v_cvt_f16_f32", of([=](u32 a, u32, u32, u32) { return half_of(a); }), Kind::kHalf},
      {"v_cvt_pkrtz_f16_f32", of([=](u32 a, u32 b, u32, u32) { return pair(cut(a), cut(b), 16); }),
       Kind::kPackedHalf},
      {"v_cvt_pk_f16_f32",
       of([=](u32 a, u32 b, u32, u32) { return pair(half_of(a), half_of(b), 16); }),
       Kind::kPackedHalf, true},
      {"v_cvt_pk_bf16_f32",
       of([=](u32 a, u32 b, u32, u32) { return pair(bfloat(a), bfloat(b), 16); }), Kind::kBits,
       true},
      {"v_fma_mix_f32", of([](u32 a, u32 b, u32 c, u32) {
         return mixed_fma(number(half(), high(a)), number(half(), low(b)), number(single(), c),
                          single());
       }),
       Kind::kSingle},
      {"v_fma_mixlo_f16", of([](u32 a, u32 b, u32 c, u32 before) {
         return pair(
             mixed_fma(number(single(), a), number(half(), low(b)), number(single(), c), half()),
             high(before), 16);
       }),
       Kind::kPackedHalf},
      {"v_fma_mixhi_f16", of([](u32 a, u32 b, u32 c, u32 before) {
         return pair(low(before),
                     mixed_fma(number(half(), low(a)), number(half(), low(b)),
                               number(half(), low(c)), half()),
                     16);
       }),
       Kind::kPackedHalf},
      {"v_cvt_pk_fp8_f32", of([&e4m3](u32 a, u32 b, u32, u32 before) {
         return pair(pair(convert(single(), a, e4m3), convert(single(), b, e4m3), 8), high(before),
                     16);
       })},
      {"v_cvt_pk_fp8_f32_high", of([&e4m3](u32 a, u32 b, u32, u32 before) {
         return pair(low(before), pair(convert(single(), a, e4m3), convert(single(), b, e4m3), 8),
                     16);
       })},
      {"v_cvt_pk_bf8_f32", of([&e5m2](u32 a, u32 b, u32, u32 before) {
         return pair(pair(convert(single(), a, e5m2), convert(single(), b, e5m2), 8), high(before),
                     16);
       })},
      {"v_cvt_f32_fp8",
       of([&e4m3](u32 a, u32, u32, u32) { return convert(e4m3, byte(a, 0), single()); }),
       Kind::kSingle},
      {"v_cvt_f32_fp8_byte2",
       of([&e4m3](u32 a, u32, u32, u32) { return convert(e4m3, byte(a, 2), single()); }),
       Kind::kSingle},
      {"v_cvt_f32_bf8",
       of([&e5m2](u32 a, u32, u32, u32) { return convert(e5m2, byte(a, 0), single()); }),
       Kind::kSingle},
  };
}

bool is_nan(Kind kind, u32 bits) {
  return kind == Kind::kSingle ? (bits & 0x7fffffffU) > 0x7f800000U : (bits & 0x7fff) > 0x7c00;
}
bool is_same(Kind kind, u32 expected, u32 got) {
  if (expected == got) return true;
  if (kind == Kind::kBits) return false;
  if (kind != Kind::kPackedHalf) return is_nan(kind, expected) && is_nan(kind, got);
  return is_same(Kind::kHalf, low(expected), low(got)) &&
         is_same(Kind::kHalf, high(expected), high(got));
}

/// Operands: any bits, numbers near each other, and in turn the special values of every format.
u32 draw(std::mt19937& generator) {
  static constexpr std::array<u32, 24> kSpecial{
      0x00000000, 0x80000000, 0x00000001, 0x807fffff, 0x00800000, 0x7f7fffff,
      0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0x3f800000, 0xbf800000,
      0x43e00000, 0x43e80000, 0x47600000, 0x477ff000, 0x7c007bff, 0xfc000400,
      0x80000001, 0x7e003c00, 0x38800000, 0x33000000, 0x3f008000, 0x7f80fe80};
  switch (generator() % 4) {
    case 0:
      return kSpecial[generator() % kSpecial.size()];
    case 1:
      return generator();
    case 2:  // binary32 of a moderate size
      return (generator() & 0x807fffffU) | (115 + generator() % 24) << 23;
    default:  // halves of a moderate size
      return (generator() & 0x83ff83ffU) | (10 + generator() % 10) << 10 |
             (10 + generator() % 10) << 26;
  }
}

class Foreign : public testing::TestWithParam<const char*> {
 protected:
  std::string chip = GetParam();
  std::filesystem::path file =
      std::filesystem::path(MONOREF_FOREIGN_DIRECTORY) / ("instructions." + chip + ".co");
  std::unique_ptr<Backend> backend = make_gfx_backend_of(file, {});

  void expect_right(const Instruction& instruction);
  /// Runs a kernel of one wave on three operands and a mask buffer; its output words.
  std::vector<u32> one_wave(const std::string& kernel, const std::vector<u32>& a,
                            const std::vector<u32>& b, const std::vector<u32>& c,
                            const std::vector<u32>& masks, std::size_t words);
};

std::vector<u32> Foreign::one_wave(const std::string& kernel, const std::vector<u32>& a,
                                   const std::vector<u32>& b, const std::vector<u32>& c,
                                   const std::vector<u32>& masks, std::size_t words) {
  const std::vector<u32> out(words);
  backend->place(std::vector{buffer("a", a), buffer("b", b), buffer("c", c), buffer("masks", masks),
                             buffer("out", out)});
  const RunReport report = run(*backend, kernel, row(1, 64), pointer<const u32>(*backend, 0),
                               pointer<const u32>(*backend, 1), pointer<const u32>(*backend, 2),
                               pointer<const u64>(*backend, 3), pointer<u32>(*backend, 4));
  EXPECT_EQ(report.status, RunStatus::kOk) << report.message;
  return content<u32>(*backend, 4, words);
}

void Foreign::expect_right(const Instruction& instruction) {
  std::mt19937 generator(20260731);
  std::vector<Row> rows(kWaves);
  std::vector<u32> a, b, c, out;
  std::vector<u64> masks;
  for (Row& one : rows) {
    for (unsigned l = 0; l < kLanes; ++l) {
      one.a[l] = draw(generator);
      one.b[l] = draw(generator);
      one.c[l] = draw(generator);
      one.before[l] = generator();
    }
    one.mask = masks.size() % 2 == 0 ? ~u64{0} : u64{generator()} << 32 | generator();
    masks.push_back(one.mask);
    a.insert(a.end(), one.a.begin(), one.a.end());
    b.insert(b.end(), one.b.begin(), one.b.end());
    c.insert(c.end(), one.c.begin(), one.c.end());
    out.insert(out.end(), one.before.begin(), one.before.end());
  }
  backend->place(std::vector{buffer("a", a), buffer("b", b), buffer("c", c), buffer("masks", masks),
                             buffer("out", out)});
  const RunReport report = run(*backend, std::string("test_") + instruction.name, row(kWaves, 64),
                               pointer<const u32>(*backend, 0), pointer<const u32>(*backend, 1),
                               pointer<const u32>(*backend, 2), pointer<const u64>(*backend, 3),
                               pointer<u32>(*backend, 4));
  ASSERT_EQ(report.status, RunStatus::kOk) << instruction.name << ": " << report.message;
  const std::vector<u32> got = content<u32>(*backend, 4, out.size());
  std::size_t wrong = 0;
  for (unsigned w = 0; w < kWaves; ++w)
    for (unsigned l = 0; l < kLanes; ++l) {
      const Row& one = rows[w];
      const bool active = (one.mask >> l & 1) != 0;
      const u32 expected = active ? instruction.meaning(one, l) : one.before[l];
      const u32 found = got[w * kLanes + l];
      if (is_same(active ? instruction.kind : Kind::kBits, expected, found)) continue;
      if (wrong++ == 0)
        ADD_FAILURE() << instruction.name << std::hex << " of " << one.a[l] << ", " << one.b[l]
                      << ", " << one.c[l] << " onto " << one.before[l] << ": expected " << expected
                      << ", got " << found;
    }
  EXPECT_EQ(wrong, 0U) << instruction.name;
}

TEST_P(Foreign, InstructionsAreWhatTheyAreInCpp) {
  std::size_t tried = 0;
  for (const auto& list :
       {whole_number_instructions(), single_instructions(), half_instructions(), conversions(chip)})
    for (const Instruction& instruction : list)
      if (chip == "gfx950" || !instruction.only_gfx950) {
        expect_right(instruction);
        ++tried;
      }
  EXPECT_GT(tried, 35U);
}

/// Of a scale only the exponent counts; small formats are divided by it, large ones multiplied.
TEST_P(Foreign, ConversionsWithAScale) {
  if (chip != "gfx950") return;  // gfx942 has none
  std::mt19937 generator(7);
  const std::vector<u32> masks(2, ~0U);
  for (unsigned round = 0; round < kWaves; ++round) {
    std::vector<u32> a(kLanes), b(kLanes), scale(kLanes);
    for (unsigned l = 0; l < kLanes; ++l) {
      a[l] = draw(generator) & 0xbfffffffU;  // finite
      b[l] = draw(generator) & 0xbfffffffU;
      scale[l] = (generator() & 0x7fffffU) | (100 + generator() % 50) << 23;
    }
    const auto to_fp8 = one_wave("test_v_cvt_scalef32_pk_fp8_f32", a, b, scale, masks, kLanes);
    const auto to_fp4 = one_wave("test_v_cvt_scalef32_pk_fp4_f32", a, b, scale, masks, kLanes);
    const auto to_f32 = one_wave("test_v_cvt_scalef32_f32_fp8", a, scale, scale, masks, kLanes);
    for (unsigned l = 0; l < kLanes; ++l) {
      const auto both = [&](const llvm::fltSemantics& format, unsigned width) {
        return pair(scaled_down(a[l], scale[l], format), scaled_down(b[l], scale[l], format),
                    width);
      };
      EXPECT_EQ(to_fp8[l], both(APFloat::Float8E4M3FN(), 8) << 16) << std::hex << a[l];
      EXPECT_EQ(to_fp4[l], both(APFloat::Float4E2M1FN(), 4) << 8) << std::hex << a[l];
      const u32 factor = convert(APFloat::Float8E4M3FN(), byte(a[l], 3), single());
      const u32 value = bits_of(number(single(), factor) * power(scale[l]));
      EXPECT_TRUE(is_same(Kind::kSingle, value, to_f32[l])) << std::hex << a[l];
    }
  }
}

TEST_P(Foreign, SwapsOfLanes) {
  if (chip != "gfx950") return;  // gfx942 has none
  std::vector<u32> a(kLanes), b(kLanes);
  for (unsigned l = 0; l < kLanes; ++l) {
    a[l] = l;
    b[l] = 100 + l;
  }
  for (const unsigned part : {16U, 32U}) {
    const auto got =
        one_wave("test_v_permlane" + std::to_string(part) + "_swap_b32", a, b, a, a, 2 * kLanes);
    for (unsigned l = 0; l < kLanes; ++l) {
      const bool odd = l / part % 2 == 1;
      EXPECT_EQ(got[l], odd ? 100 + l - part : l);
      EXPECT_EQ(got[kLanes + l], odd ? 100 + l : l + part);
    }
  }
}

TEST_P(Foreign, TransposedReadsOfSharedMemory) {
  if (chip != "gfx950") return;  // gfx942 has none
  std::vector<u32> a(2 * kLanes);
  std::mt19937 generator(3);
  for (u32& word : a) word = generator();
  const auto element = [&](unsigned lane, unsigned n, unsigned bytes) {
    const auto* const from = reinterpret_cast<const std::uint8_t*>(a.data()) + 8 * lane;
    u32 value = 0;
    std::memcpy(&value, from + std::size_t{n} * bytes, bytes);
    return value;
  };
  const auto got = one_wave("test_transposed", a, a, a, a, 4 * kLanes);
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(got.data());
  for (unsigned l = 0; l < kLanes; ++l) {
    const unsigned row = l / 16 * 16, i = l % 16;
    for (unsigned j = 0; j < 4; ++j) {
      u32 value = 0;
      std::memcpy(&value, bytes + 8 * l + 2 * j, 2);
      EXPECT_EQ(value, element(row + 4 * j + i / 4, i % 4, 2)) << l << " " << j;
    }
    for (unsigned j = 0; j < 8; ++j)
      EXPECT_EQ(bytes[8 * (kLanes + l) + j], element(row + 2 * j + i / 8, i % 8, 1))
          << l << " " << j;
  }
}

/// Loads beyond a descriptor's end give 0, stores there are dropped, each word by itself.
TEST_P(Foreign, BufferDescriptorsBoundMemory) {
  std::vector<u32> from(256), to(256, 7);
  for (u32 n = 0; n < from.size(); ++n) from[n] = 1000 + n;
  for (const u32 records : {1024U, 1000U, 40U, 0U}) {
    backend->place(std::vector{buffer("from", from), buffer("to", to)});
    const RunReport report =
        run(*backend, "test_buffer_words", row(1, 64), pointer<const u32>(*backend, 0),
            pointer<u32>(*backend, 1), records, 16U);
    ASSERT_EQ(report.status, RunStatus::kOk) << report.message;
    const auto got = content<u32>(*backend, 1, to.size());
    for (u32 n = 0; n < got.size(); ++n)
      EXPECT_EQ(got[n], 4 * n < records ? from[n] + 1 : 7) << n << " of " << records;
  }
  // An address within the descriptor and without the buffer is a fault.
  backend->place(std::vector{buffer("from", from), buffer("to", to)});
  const RunReport report =
      run(*backend, "test_buffer_bytes", row(1, 64), pointer<const u32>(*backend, 0),
          pointer<u32>(*backend, 1), 0x7ffffffeU, 17U);
  EXPECT_EQ(report.status, RunStatus::kCrashed);
  EXPECT_NE(report.message.find("buffer_load_ubyte"), std::string::npos) << report.message;
  EXPECT_NE(report.message.find("lane 61: a read of 1 bytes"), std::string::npos) << report.message;
}

// ---------------------------------------------------------------------------------------------
// Matrix instructions: small whole numbers, whose sums are exact in any order, show which register
// of which lane holds which element.

struct Product {
  const char* kernel;
  unsigned rows, depth, blocks;
  unsigned bits;             ///< of a factor's element
  unsigned registers;        ///< of a factor, as the kernel loads it
  u32 (*encode)(int value);  ///< a whole number from -3 to 3 as an element
  bool is_float = true;
  bool in_halves = false;
  unsigned cbsz = 0, abid = 0;
  bool only_gfx950 = false;
};

u32 as_single(int value) {
  return std::bit_cast<u32>(static_cast<float>(value));
}
u32 as_half(int value) {
  return convert(single(), as_single(value), half());
}
u32 as_bfloat(int value) {
  return as_single(value) >> 16;
}
u32 as_byte(int value) {
  return static_cast<u32>(value) & 0xff;
}
u32 as_fp8(int value) {
  return convert(single(), as_single(value), APFloat::Float8E4M3FN());
}
u32 as_fnuz(int value) {
  return convert(single(), as_single(value), APFloat::Float8E4M3FNUZ());
}
u32 as_fp4(int value) {
  return convert(single(), as_single(value), APFloat::Float4E2M1FN());
}

/// Factor elements of a wave: values[lane][element], and where an element lies.
struct Place {
  unsigned block, row, k;
};
Place place_of(const Product& p, unsigned lane, unsigned element) {
  const unsigned each = p.rows * p.depth * p.blocks / kLanes;
  if (p.blocks > 1) return {lane / p.rows, lane % p.rows, element};
  const unsigned g = lane / p.rows;
  if (!p.in_halves) return {0, lane % p.rows, each * g + element};
  return {0, lane % p.rows, element < 16 ? 16 * g + element : p.depth / 2 + 16 * g + element - 16};
}

class Factor {
 public:
  Factor(const Product& p, std::mt19937& generator, u32 (*encode)(int)) : p_(p) {
    words.resize(std::size_t{kLanes} * p.registers);
    values_.resize(std::size_t{p.blocks} * p.rows * p.depth);
    const unsigned each = p.rows * p.depth * p.blocks / kLanes;
    for (unsigned lane = 0; lane < kLanes; ++lane)
      for (unsigned n = 0; n < each; ++n) {
        const int value = static_cast<int>(generator() % 7) - 3;
        const unsigned bit = n * p.bits;
        words[lane * p.registers + bit / 32] |= encode(value) << bit % 32;
        const Place at = place_of(p, lane, n);
        values_[(at.block * p.rows + at.row) * p.depth + at.k] = value;
      }
  }
  int at(unsigned block, unsigned row, unsigned k) const {
    return values_[(block * p_.rows + row) * p_.depth + k];
  }
  std::vector<u32> words;

 private:
  const Product& p_;
  std::vector<int> values_;
};

/// Block, row and column of a lane's n-th result.
std::array<unsigned, 3> result_of(const Product& p, unsigned lane, unsigned n) {
  if (p.rows == 4) return {lane / 4, n, lane % 4};
  if (p.rows == 16) return {n / 4, 4 * (lane / 16) + n % 4, lane % 16};
  return {n / 16, (n & 3) + 8 * (n % 16 >> 2) + 4 * (lane / 32), lane % 32};
}

const std::vector<Product>& products() {
  static const std::vector<Product> kProducts{
      {"f32_16x16x4", 16, 4, 1, 32, 1, as_single},
      {"f16_16x16x16", 16, 16, 1, 16, 2, as_half},
      {"f16_4x4x4", 4, 4, 16, 16, 2, as_half},
      {"f16_4x4x4_broadcast", 4, 4, 16, 16, 2, as_half, true, false, 2, 1},
      {"bf16_32x32x8", 32, 8, 1, 16, 2, as_bfloat},
      {"i8_32x32x16", 32, 16, 1, 8, 2, as_byte, false},
      {"fp8_16x16x32", 16, 32, 1, 8, 2, as_fp8},
      {"f16_32x32x16", 32, 16, 1, 16, 4, as_half, true, false, 0, 0, true},
      {"bf16_16x16x32", 16, 32, 1, 16, 4, as_bfloat, true, false, 0, 0, true},
      {"i8_16x16x64", 16, 64, 1, 8, 4, as_byte, false, false, 0, 0, true},
      {"mx8_16x16x128", 16, 128, 1, 8, 8, as_fp8, true, true, 0, 0, true},
      {"mx4_32x32x64", 32, 64, 1, 4, 8, as_fp4, true, false, 0, 0, true},
  };
  return kProducts;
}

TEST_P(Foreign, MatrixInstructionsHaveTheirElementsInPlace) {
  std::mt19937 generator(11);
  for (const Product& p : products()) {
    if (p.only_gfx950 && chip != "gfx950") continue;
    const bool fnuz = chip == "gfx942" && p.encode == as_fp8;
    const Factor a(p, generator, fnuz ? as_fnuz : p.encode);
    const Factor b(p, generator, fnuz ? as_fnuz : p.encode);
    const unsigned results = p.rows * p.rows * p.blocks / kLanes;
    std::vector<u32> c(std::size_t{kLanes} * results);
    std::vector<int> addends(c.size());
    for (std::size_t n = 0; n < c.size(); ++n) {
      addends[n] = static_cast<int>(generator() % 1000);
      c[n] = p.is_float ? as_single(addends[n]) : static_cast<u32>(addends[n]);
    }
    // Scales in all four bytes: only the kernels with a scale look, at bytes 1 and 2, or 0 and 3.
    const bool scaled = std::string_view(p.kernel).starts_with("mx");
    std::vector<u32> scales(2 * kLanes);
    for (u32& word : scales)
      for (unsigned n = 0; n < 4; ++n) word |= (126 + generator() % 3) << (8 * n);
    const auto scale_of = [&](unsigned side, unsigned row, unsigned k) {
      if (!scaled) return 1.0;
      const bool eight = p.bits == 8;
      const unsigned chosen = side == 0 ? (eight ? 1 : 0) : (eight ? 2 : 3);
      const u32 word = scales[side * kLanes + row + p.rows * (k / 32)];
      return std::ldexp(1.0, static_cast<int>(byte(word, chosen)) - 127);
    };
    const auto got =
        one_wave("test_" + std::string(p.kernel), a.words, b.words, c, scales, c.size());
    for (unsigned lane = 0; lane < kLanes; ++lane)
      for (unsigned n = 0; n < results; ++n) {
        const auto [block, row, column] = result_of(p, lane, n);
        const unsigned block_a = p.cbsz == 0 ? block : block / 4 * 4 + p.abid;
        double sum = addends[lane * results + n];
        for (unsigned k = 0; k < p.depth; ++k)
          sum += a.at(block_a, row, k) * scale_of(0, row, k) * b.at(block, column, k) *
                 scale_of(1, column, k);
        const u32 expected = p.is_float ? std::bit_cast<u32>(static_cast<float>(sum))
                                        : static_cast<u32>(static_cast<i32>(sum));
        ASSERT_EQ(got[lane * results + n], expected) << p.kernel << " lane " << lane << " " << n;
      }
  }
}

/// The sum is rounded once: large terms that cancel leave the small ones whole.
TEST_P(Foreign, MatrixInstructionsAddExactlyByDefault) {
  std::mt19937 generator(5);
  const std::vector<u32> masks(128);
  for (int round = 0; round < 20; ++round) {
    std::vector<u32> a(kLanes), b(kLanes), c(std::size_t{4} * kLanes);
    for (u32& word : a) word = (generator() & 0x807fffffU) | (117 + generator() % 20) << 23;
    for (u32& word : b) word = (generator() & 0x807fffffU) | (117 + generator() % 20) << 23;
    for (u32& word : c) word = (generator() & 0x807fffffU) | (107 + generator() % 40) << 23;
    const auto got = one_wave("test_f32_16x16x4", a, b, c, masks, c.size());
    for (unsigned lane = 0; lane < kLanes; ++lane)
      for (unsigned n = 0; n < 4; ++n) {
        // All terms are multiples of 2^-66 below 2^22.
        constexpr int kScale = 66;
        const auto fixed = [](u32 bits, int scale) {
          const double value = std::ldexp(std::bit_cast<float>(bits), scale);
          return static_cast<Fixed>(value);
        };
        const unsigned row = 4 * (lane / 16) + n, column = lane % 16;
        Fixed sum = fixed(c[lane * 4 + n], kScale);
        for (unsigned k = 0; k < 4; ++k)
          sum += fixed(a[16 * k + row], kScale / 2) * fixed(b[16 * k + column], kScale / 2);
        const float expected = std::ldexp(static_cast<float>(sum), -kScale);
        ASSERT_EQ(got[lane * 4 + n], std::bit_cast<u32>(expected)) << lane << " " << n;
      }
  }
}

TEST_P(Foreign, ObjectsDescribeThemselves) {
  const gfx::Description object = gfx::describe(file);
  EXPECT_EQ(object.chip, chip);
  EXPECT_EQ(object.version, 6);
  const auto kernel =
      std::find_if(object.kernels.begin(), object.kernels.end(),
                   [](const gfx::Kernel& candidate) { return candidate.name == "test_v_add_f32"; });
  ASSERT_NE(kernel, object.kernels.end());
  ASSERT_GE(kernel->parameters.size(), 5U);
  EXPECT_EQ(kernel->parameters[4].offset, 32U);
  EXPECT_EQ(kernel->parameters[4].size, 8U);
  EXPECT_EQ(kernel->max_threads, 64U);
  for (const gfx::Opcode& opcode : object.opcodes) EXPECT_EQ(opcode.unknown, 0U) << opcode.name;
}

INSTANTIATE_TEST_SUITE_P(Chips, Foreign, testing::Values("gfx942", "gfx950"),
                         [](const auto& parameter) { return std::string(parameter.param); });

TEST(MatrixModels, AreNamedAndSayWhatTheyRestOn) {
  EXPECT_EQ(gfx::matrix_model("exact"), gfx::MatrixModel::kExact);
  EXPECT_FALSE(gfx::matrix_model("guess"));
  EXPECT_NE(gfx::matrix_note("gfx950", gfx::MatrixModel::kExact).find("provisional"),
            std::string::npos);
  EXPECT_NE(gfx::matrix_note("gfx950", gfx::MatrixModel::kCdna3Microsoft).find("provisional"),
            std::string::npos);
  EXPECT_EQ(gfx::matrix_note("gfx942", gfx::MatrixModel::kCdna3Peichenxie).find("provisional"),
            std::string::npos);
}

}  // namespace
}  // namespace monoref::device
