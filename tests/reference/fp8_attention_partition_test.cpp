#include "reference/stages/fp8_attention_partition.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "reference/arithmetic/portable.hpp"
#include "tests/reference/attention_data.hpp"

namespace monoref::testing {
namespace {

constexpr float kLog2E = 1.44269504088896340736f;
const Contract kMono{};

Contract with(std::string_view text) {
  return Contract::parse("mono," + std::string(text));
}

TEST(Fp8AttentionPartition, OneKeyIsItsValue) {
  Attention attention = Attention::zeros(kMono, 1, 2, 2);
  attention.set_context(0, 1);
  attention.set_q(0, 1, 3, 2.0f);
  attention.set_k({0, 0, 3}, 4.0f);
  attention.set_v({0, 0, 5}, -0.75f);
  const PartialAttention part = partial(attention);
  EXPECT_EQ(part.m_at(0, 0, 0), 0.0f);
  EXPECT_EQ(part.m_at(0, 0, 1), 8.0f * 0.08838834764831845f);
  EXPECT_EQ(part.l_at(0, 0, 0), 1.0f);
  EXPECT_EQ(part.o_at(0, 0, 0, 5), -0.75f);
  EXPECT_EQ(part.o_at(0, 0, 1, 5), -0.75f);
  EXPECT_EQ(part.o_at(0, 0, 0, 4), 0.0f);
}

TEST(Fp8AttentionPartition, APartitionOfMaskedKeysHasTheMaskAsItsMaximum) {
  Attention attention = Attention::zeros(kMono, 1, 1, 4);
  attention.fill_v(3.0f);
  attention.set_context(0, 256);
  const PartialAttention part = partial(attention);
  EXPECT_EQ(part.l_at(0, 0, 0), 256.0f);
  EXPECT_EQ(part.o_at(0, 0, 0, 0), 3.0f);
  EXPECT_EQ(part.m_at(0, 1, 0), -3.4e38f);
  EXPECT_EQ(part.l_at(0, 1, 0), 256.0f);
  EXPECT_EQ(part.o_at(0, 1, 0, 0), 0.0f);
}

TEST(Fp8AttentionPartition, TwoKeysShareTheirMassByTheirScores) {
  Attention attention = Attention::zeros(kMono, 1, 1, 2);
  attention.set_context(0, 2);
  attention.sm_scale = 1.0;
  attention.set_q(0, 0, 0, 1.0f);
  attention.set_k({0, 0, 0}, 1.0f);
  attention.set_v({0, 0, 0}, 1.0f);
  attention.set_v({1, 0, 1}, 1.0f);
  const PartialAttention part = partial(attention);
  const float p = portable_exp2(-1.0f * kLog2E);
  EXPECT_EQ(part.m_at(0, 0, 0), 1.0f);
  EXPECT_EQ(part.l_at(0, 0, 0), 1.0f + p);
  // p * 448 = 164.8 is between the codes 160 and 176; f32(1/448) and 1/l as single operations.
  const float per_p = 1.0f / 448.0f;
  EXPECT_EQ(part.o_at(0, 0, 0, 0), round_to_bf16((per_p * 448.0f) * (1.0f / (1.0f + p))));
  EXPECT_EQ(part.o_at(0, 0, 0, 1), round_to_bf16((per_p * 160.0f) * (1.0f / (1.0f + p))));
}

TEST(Fp8AttentionPartition, SumsOverKeysGoByLaneButterflyAndWave) {
  // p is 1 at key 0 and 2^-24 at others: an order that adds the small ones first keeps them.
  Attention attention = Attention::zeros(kMono, 1, 1, 2);
  attention.sm_scale = 1.0 / 1.4426950408889634;
  attention.set_q(0, 0, 0, 8.0f);
  for (std::int64_t key = 1; key < 256; ++key) attention.set_k({key, 0, 0}, -3.0f);
  const PartialAttention part = partial(attention);
  const float scale = static_cast<float>(attention.sm_scale);
  const float p = portable_exp2((scale * -24.0f - 0.0f) * kLog2E);
  ASSERT_EQ(p, 0x1p-24f);
  // Lane 0 of wave 0 holds 1 + p = 1 (a tie to even); the butterfly adds 2p, 4p, 8p and 16p, which
  // are whole last places of 1 from 2p on. Seven waves of 32 p follow.
  EXPECT_EQ(part.l_at(0, 0, 0), 1.0f + (2 + 4 + 8 + 16 + 7 * 32) * 0x1p-24f);
}

/// p = 2^-exponent, and what is left of it in the product with V.
struct Level {
  std::int64_t exponent;
  float code_of_448;  ///< e4m3(448 p)
  float code_of_1;    ///< e4m3(p)
};
/// The last two are 0.875 and 0.21875 of the smallest code, of 448 as well.
constexpr Level kPeak{0, 448.0f, 1.0f};
constexpr Level kOthers[] = {{3, 56.0f, 0x1p-3f},
                             {8, 1.75f, 0x1p-8f},
                             {11, 0.21875f, 0.0f},
                             {18, 0x1p-9f, 0.0f},
                             {20, 0.0f, 0.0f}};

/// The first key of every partition has the highest score.
const Level& level_of(std::int64_t key) {
  return key % 256 == 0 ? kPeak : kOthers[key % 256 % 5];
}

/// The merged mass of a context by the specification's formulas. Sums of p and of its codes are
/// exact, whatever their order: multiples of 2^-20 below 2^4, and of 2^-9 below 2^12.
float mass_of(std::int64_t context, bool scaled) {
  std::vector<float> l, o;
  for (std::int64_t first = 0; first < context; first += 256) {
    float sum = 0, codes = 0;
    for (std::int64_t key = first; key < std::min(context, first + 256); ++key) {
      sum += std::ldexp(1.0f, -static_cast<int>(level_of(key).exponent));
      codes += scaled ? level_of(key).code_of_448 : level_of(key).code_of_1;
    }
    const float per_code = 1.0f / (scaled ? 448.0f : 1.0f);
    l.push_back(sum);
    o.push_back(round_to_bf16((per_code * codes) * (1.0f / sum)));
  }
  float total = l[0];
  for (std::size_t i = 1; i < l.size(); ++i) total += l[i];
  float out = 0;
  for (std::size_t i = 0; i < l.size(); ++i) out += (l[i] / total) * o[i];
  return round_to_bf16(out);
}

TEST(Fp8AttentionPartition, S07F07EveryContextHasTheMassThatRoundingLeaves) {
  for (const bool scaled : {true, false})
    for (const std::int64_t heads : {1, 4, 8, 16}) {
      Attention attention =
          Attention::zeros(with(scaled ? "p_scale=maximum" : "p_scale=one"), 1, heads, 5);
      attention.fill_v(1.0f);
      attention.sm_scale = 1.0 / 1.4426950408889634;
      ASSERT_EQ(portable_exp2((static_cast<float>(attention.sm_scale) * -11.0f) * kLog2E),
                0x1p-11f);
      for (std::int64_t head = 0; head < heads; ++head) attention.set_q(0, head, 0, 1.0f);
      for (std::int64_t key = 0; key < 5 * 128; ++key)
        attention.set_k({key, 0, 0}, -static_cast<float>(level_of(key).exponent));
      for (std::int64_t context = 1; context <= 600; ++context) {
        attention.set_context(0, context);
        const float expected = mass_of(context, scaled);
        for (const float out : merged(partial_fast(attention), attention.contract))
          ASSERT_EQ(out, expected) << context << " keys, " << heads << " heads";
      }
    }
  EXPECT_EQ(mass_of(600, true), 1.0f) << "what the scale of 448 is for";
  EXPECT_LT(mass_of(600, false), 1.0f);
}

TEST(Fp8AttentionPartition, F07FlatScoresGiveExactlyOneUpTo2048Keys) {
  for (const char* contract : {"p_scale=maximum", "p_scale=one"}) {
    Attention attention = Attention::zeros(with(contract), 1, 1, 16);
    attention.fill_v(1.0f);
    for (std::int64_t context = 1; context <= 2048; ++context) {
      attention.set_context(0, context);
      for (const float out : merged(partial_fast(attention), attention.contract))
        EXPECT_EQ(out, 1.0f) << context;
    }
  }
}

TEST(Fp8AttentionPartition, F07UnscaledProbabilitiesBelowHalfTheSmallestCodeLoseTheirMass) {
  // One key at score 0, 255 at -8: p = e^-8 = 2^-11.5 rounds to 0 unscaled, to 0.15 of 448 scaled.
  const auto out_of = [](const char* contract) {
    Attention attention = Attention::zeros(with(contract), 1, 1, 2);
    attention.fill_v(1.0f);
    attention.sm_scale = 1.0;
    attention.set_q(0, 0, 0, 1.0f);
    for (std::int64_t key = 1; key < 256; ++key) attention.set_k({key, 0, 0}, -8.0f);
    return partial(attention).o_at(0, 0, 0, 0);
  };
  const float p = portable_exp2(-8.0f * kLog2E);
  EXPECT_LT(out_of("p_scale=one"), 1.0f / (1.0f + 250 * p));
  EXPECT_GT(out_of("p_scale=maximum"), 1.0f / (1.0f + 250 * p));
}

TEST(Fp8AttentionPartition, F01EveryCodeIsReadInTheDeclaredFormat) {
  for (const char* contract : {"fp8_encoding=e4m3fn", "fp8_encoding=e4m3fnuz,fp8_max=240"}) {
    Attention attention = Attention::zeros(with(contract), 1, 1, 2, 1, 256);
    attention.set_context(0, 1);
    for (std::int64_t code = 0; code < 256; ++code)
      attention.set_v_code({0, 0, code}, static_cast<std::uint8_t>(code));
    const PartialAttention part = partial(attention);
    const FloatFormat& format = float_format(fp8_dtype(attention.contract));
    for (std::int64_t code = 0; code < 256; ++code) {
      const float value = decode(format, static_cast<std::uint32_t>(code));
      if (value == value)
        EXPECT_EQ(part.o_at(0, 0, 0, code), value) << code;
      else
        EXPECT_EQ(part.o_code(0, 0, 0, code), 0x7FC0) << code;
    }
  }
}

TEST(Fp8AttentionPartition, F15OperandsOfDifferentEncodingsAreRefused) {
  Attention attention = Attention::zeros(kMono, 1, 1, 2);
  attention.contract.fp8_encoding = Fp8Encoding::kFnuz;
  attention.contract.fp8_max = Fp8Max::k240;
  EXPECT_EQ(refusal_of([&] { partial(attention); }),
            "fp8_attention_partition: k_cache is float8_e4m3fn, must be float8_e4m3fnuz or"
            " bfloat16");
}

TEST(Fp8AttentionPartition, F15AQueryIsQuantisedInTheFormatOfTheKeys) {
  // 0x38 stands for 1 in E4M3FN and for 0.5 in FNUZ.
  Attention attention = Attention::zeros(with("fp8_encoding=e4m3fnuz,fp8_max=240"), 1, 1, 2);
  attention.set_context(0, 1);
  attention.sm_scale = 1.0;
  attention.set_q(0, 0, 0, 1.0f);
  attention.set_k_code({0, 0, 0}, 0x38);
  EXPECT_EQ(partial(attention).m_at(0, 0, 0), 0.5f);
}

TEST(Fp8AttentionPartition, F10ScalesOfKAndVApplyOnceEach) {
  Attention attention = Attention::zeros(kMono, 1, 1, 2);
  attention.set_context(0, 1);
  attention.set_q(0, 0, 0, 2.0f);
  attention.set_k({0, 0, 0}, 4.0f);
  attention.set_v({0, 0, 1}, 3.0f);
  const float unscaled = partial(attention).m_at(0, 0, 0);
  attention.k_scale = {0.5f};
  attention.v_scale = {4.0f};
  const PartialAttention part = partial(attention);
  EXPECT_EQ(part.m_at(0, 0, 0), 0.5f * unscaled);
  EXPECT_EQ(part.o_at(0, 0, 0, 1), 12.0f);
  attention.contract.v_scale = VScale::kPerTile;
  EXPECT_EQ(partial(attention).o_at(0, 0, 0, 1), 12.0f);
}

TEST(Fp8AttentionPartition, F13AbsentScalesAreOnes) {
  Attention attention = Attention::zeros(kMono, 1, 2, 2, 2);
  for (std::int64_t dim = 0; dim < 16; ++dim) {
    attention.set_q(0, 0, dim, 1.0f);
    attention.set_q(0, 1, dim, -1.0f);
    for (std::int64_t key = 0; key < 256; ++key) {
      attention.set_k({key, dim % 2, dim}, static_cast<float>(key % 5));
      attention.set_v({key, dim % 2, dim}, static_cast<float>(key % 7));
    }
  }
  const Numbers absent = partial(attention).bits();
  attention.k_scale = {1.0f, 1.0f};
  EXPECT_EQ(partial(attention).bits(), absent);
  attention.v_scale = {1.0f, 1.0f};
  EXPECT_EQ(partial(attention).bits(), absent);
}

TEST(Fp8AttentionPartition, P18AHeadReadsTheScalesOfItsOwnKvHead) {
  Attention attention = Attention::zeros(kMono, 1, 4, 2, 2);
  attention.set_context(0, 1);
  attention.sm_scale = 1.0;
  for (std::int64_t head = 0; head < 4; ++head) attention.set_q(0, head, 0, 1.0f);
  for (std::int64_t kv_head = 0; kv_head < 2; ++kv_head) {
    attention.set_k({0, kv_head, 0}, 1.0f);
    attention.set_v({0, kv_head, 0}, 1.0f);
  }
  attention.k_scale = {1.0f, 4.0f};
  attention.v_scale = {16.0f, 2.0f};
  const PartialAttention part = partial(attention);
  for (std::int64_t head = 0; head < 4; ++head) {
    EXPECT_EQ(part.m_at(0, 0, head), head < 2 ? 1.0f : 4.0f);
    EXPECT_EQ(part.o_at(0, 0, head, 0), head < 2 ? 16.0f : 2.0f);
  }
}

TEST(Fp8AttentionPartition, S10EveryKvHeadHasItsOwnSelection) {
  Attention attention = Attention::zeros(kMono, 1, 2, 2, 2);
  attention.set_context(0, 1);
  attention.contexts.view<std::int32_t, 2>()(0, 1) = 17;
  attention.table.view<std::int32_t, 3>()(0, 1, 0) = 16;
  attention.table.view<std::int32_t, 3>()(0, 1, 1) = 18;
  attention.set_v({0, 0, 0}, 2.0f);
  for (std::int64_t token = 0; token < 17; ++token)
    attention.set_v({token < 16 ? 128 + token : 160, 1, 0}, 5.0f);
  const PartialAttention part = partial(attention);
  EXPECT_EQ(part.o_at(0, 0, 0, 0), 2.0f);
  EXPECT_EQ(part.o_at(0, 0, 1, 0), 5.0f);
  EXPECT_EQ(part.l_at(0, 0, 1), 17.0f);
}

TEST(Fp8AttentionPartition, AQueryPastTheLargestCodeBecomesNanOrSaturates) {
  Attention attention = Attention::zeros(kMono, 1, 1, 2);
  attention.set_context(0, 1);
  attention.sm_scale = 1.0;
  attention.set_q(0, 0, 0, 1000.0f);
  attention.set_k({0, 0, 0}, 1.0f);
  EXPECT_TRUE(std::isnan(partial(attention).m_at(0, 0, 0)));
  attention.contract.fp8_overflow = Fp8Overflow::kSaturate;
  EXPECT_EQ(partial(attention).m_at(0, 0, 0), 448.0f);
}

TEST(Fp8AttentionPartition, ANanScoreMakesItsHeadsPartitionNanAndNoOther) {
  Attention attention = Attention::zeros(kMono, 1, 2, 2);
  attention.set_context(0, 100);
  attention.set_q(0, 1, 0, std::numeric_limits<float>::quiet_NaN());
  const PartialAttention part = partial(attention);
  EXPECT_EQ(part.m_at(0, 0, 0), 0.0f);
  EXPECT_EQ(part.o_at(0, 0, 0, 0), 0.0f);
  EXPECT_TRUE(std::isnan(part.m_at(0, 0, 1)) && std::isnan(part.l_at(0, 0, 1)));
  for (std::int64_t dim = 0; dim < 16; ++dim) EXPECT_EQ(part.o_code(0, 0, 1, dim), 0x7FC0);
}

/// Every byte of the caches that no key below the context owns becomes `code`.
Attention poison_unowned(Attention attention, std::uint8_t code) {
  Attention poisoned = attention;
  poisoned.k_cache.fill_bytes(std::byte{code});
  poisoned.v_cache.fill_bytes(std::byte{code});
  const auto table = attention.table.view<std::int32_t, 3>();
  for (std::int64_t key = 0; key < attention.contexts.view<std::int32_t, 2>()(0, 0); ++key) {
    const std::int64_t page = table(0, 0, key / 16);
    const std::int64_t slot = page / attention.shape.block_page_stride() * 128 +
                              page % attention.shape.block_page_stride() * 16 + key % 16;
    for (std::int64_t dim = 0; dim < attention.shape.head_dim; ++dim) {
      const KvElement element{slot, 0, dim};
      poisoned.set_k_code(element, std::to_integer<std::uint8_t>(
                                       attention.k_cache.base()[k_byte(attention.shape, element)]));
      const Tensor& v = attention.interleaved() ? attention.k_cache : attention.v_cache;
      poisoned.set_v_code(
          element,
          std::to_integer<std::uint8_t>(
              v.base()[attention.shape.v_view_offset() + v_byte(attention.shape, element)]));
    }
  }
  for (std::int64_t column = 0; column < table.dim(2); ++column)
    if (column * 16 >= attention.contexts.view<std::int32_t, 2>()(0, 0))
      poisoned.set_page(0, column, column % 2 == 0 ? -1 : 1 << 30);
  return poisoned;
}

Attention random_attention(std::uint64_t seed, const Contract& contract, std::int64_t rows,
                           std::int64_t heads, std::int64_t blocks, std::int64_t kv_heads,
                           std::int64_t head_dim, bool any_code) {
  Random random(seed);
  Attention made = Attention::zeros(contract, rows, heads, blocks, kv_heads, head_dim);
  for (std::int64_t row = 0; row < rows; ++row) {
    made.set_context(row, random.between(0, 128 * blocks));
    for (std::int64_t page = 0; page < blocks * 8; ++page)
      made.set_page(
          row, page,
          random.between(0, blocks - 1) * made.shape.block_page_stride() + random.between(0, 7));
    for (std::int64_t head = 0; head < heads; ++head)
      for (std::int64_t dim = 0; dim < head_dim; ++dim)
        made.set_q(row, head, dim, static_cast<float>(random.between(-1000, 1000)) / 256.0f);
  }
  for (Tensor* cache : {&made.k_cache, &made.v_cache})
    for (std::byte& byte : cache->bytes(cache->layout().extents.front())) {
      const auto code = static_cast<std::uint8_t>(random.between(0, 255));
      byte = std::byte{any_code ? code : static_cast<std::uint8_t>(code & 0xBF)};
    }
  made.k_scale.assign(static_cast<std::size_t>(kv_heads), 0.5f);
  made.v_scale.assign(static_cast<std::size_t>(kv_heads), 3.0f);
  return made;
}

TEST(Fp8AttentionPartition, S06F09WhatMemoryHoldsPastTheContextChangesNoBit) {
  for (const char* contract : {"kv_layout=interleaved", "kv_layout=dense"})
    for (const std::int64_t context : {1, 17, 130, 241, 255, 256, 257, 300}) {
      Attention attention = random_attention(3, with(contract), 1, 2, 3, 1, 16, false);
      attention.set_context(0, context);
      for (std::int64_t page = 0; page < 24; ++page)
        attention.set_page(0, page,
                           (2 - page / 8) * attention.shape.block_page_stride() + page % 8);
      const Numbers expected = partial(attention).bits();
      // NaN, 448 and the negative NaN.
      for (const int code : {0x7F, 0x7E, 0xFF}) {
        const Attention poisoned = poison_unowned(attention, static_cast<std::uint8_t>(code));
        EXPECT_EQ(partial(poisoned).bits(), expected) << contract << ", " << context;
        EXPECT_EQ(partial_fast(poisoned).bits(), expected) << contract << ", " << context;
      }
    }
}

TEST(Fp8AttentionPartition, F09KeptValuesPoisonTheRowAsInTheOlderKernel) {
  Attention attention = Attention::zeros(with("v_past_context=kept"), 1, 1, 2);
  attention.fill_v(1.0f);
  attention.set_context(0, 17);
  EXPECT_EQ(partial(attention).o_at(0, 0, 0, 3), 1.0f);
  attention.set_v_code({20, 0, 3}, 0x7F);
  for (const PartialAttention& part : {partial(attention), partial_fast(attention)}) {
    EXPECT_TRUE(std::isnan(part.o_at(0, 0, 0, 3)));
    EXPECT_EQ(part.o_at(0, 0, 0, 2), 1.0f);
  }
  // Pages past the context count as page 0, whatever the table says.
  attention.set_v_code({20, 0, 3}, 0);
  attention.set_page(0, 0, 3);
  attention.set_page(0, 15, -1);
  attention.set_v_code({5, 0, 7}, 0x7F);
  for (const PartialAttention& part : {partial(attention), partial_fast(attention)}) {
    EXPECT_TRUE(std::isnan(part.o_at(0, 0, 0, 7)));
    EXPECT_EQ(part.o_at(0, 0, 0, 2), 1.0f);
  }
}

TEST(Fp8AttentionPartition, P05DenseAndInterleavedCachesOfTheSameKeysAgree) {
  Attention one = random_attention(11, kMono, 2, 3, 3, 1, 32, false);
  Attention other = one;
  other.contract = with("kv_layout=dense");
  other.shape.layout = KvLayout::kDense;
  const Layout dense = Layout::dense({3, 8, 1, 512});
  other.k_cache = Tensor(DType::kFloat8E4M3FN, dense);
  other.v_cache = Tensor(DType::kFloat8E4M3FN, dense);
  for (std::int64_t slot = 0; slot < 3 * 128; ++slot)
    for (std::int64_t dim = 0; dim < 32; ++dim) {
      const std::byte* cache = one.k_cache.base();
      other.set_k_code({slot, 0, dim},
                       std::to_integer<std::uint8_t>(cache[k_byte(one.shape, {slot, 0, dim})]));
      other.set_v_code({slot, 0, dim},
                       std::to_integer<std::uint8_t>(
                           cache[one.shape.v_view_offset() + v_byte(one.shape, {slot, 0, dim})]));
    }
  for (std::int64_t row = 0; row < 2; ++row)
    for (std::int64_t column = 0; column < 24; ++column) {
      const std::int64_t page = one.table.view<std::int32_t, 3>()(row, 0, column);
      other.set_page(row, column, page / 16 * 8 + page % 16);
    }
  EXPECT_EQ(partial(one).bits(), partial(other).bits());
}

TEST(Fp8AttentionPartition, TheFastFormIsTheDefinition) {
  const char* const contracts[] = {"kv_layout=interleaved",
                                   "kv_layout=dense",
                                   "p_scale=one,v_scale=per_tile",
                                   "v_past_context=kept,fp8_overflow=saturate",
                                   "fp8_encoding=e4m3fnuz,fp8_max=224",
                                   "masked_score=infinite,score_units=base_2"};
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    const std::int64_t kv_heads = seed % 4 == 0 ? 2 : 1;
    const Attention attention = random_attention(
        seed, with(contracts[seed % std::size(contracts)]), 2,
        seed % 3 == 0 ? 16 : kv_heads * (1 + static_cast<std::int64_t>(seed % 2) * 4),
        1 + static_cast<std::int64_t>(seed % 4), kv_heads, seed % 5 == 0 ? 128 : 16, seed % 2 == 0);
    const Numbers expected = partial(attention).bits();
    for (const Isa isa : available_isas())
      EXPECT_EQ(partial_fast(attention, isa).bits(), expected)
          << "seed " << seed << ", " << isa_name(isa);
  }
}

TEST(Fp8AttentionPartition, RefusalsNameTheArgument) {
  const auto refusal = [](auto change) {
    Attention attention = Attention::zeros(kMono, 1, 2, 2, 2);
    change(attention);
    return refusal_of([&] { fp8_attention_partition_shape(attention.input()); });
  };
  EXPECT_EQ(refusal([](Attention& a) { a.contract.attention_plan = AttentionPlan::kSplits; }),
            "fp8_attention_partition: attention_plan is splits, must be partitions");
  EXPECT_EQ(refusal([](Attention& a) { a.contract.attention_operands = AttentionOperands::kBf16; }),
            "fp8_attention_partition: attention_operands is bf16, must be fp8");
  EXPECT_EQ(refusal([](Attention& a) { a.k_cache = Tensor(DType::kBFloat16, a.k_cache.layout()); }),
            "fp8_attention_partition: k_cache is bfloat16, must be float8_e4m3fn");
  EXPECT_EQ(refusal([](Attention& a) {
              a.k_cache = Tensor(DType::kFloat8E4M3FN, Layout::dense({2, 16, 512}));
            }),
            "fp8_attention_partition: k_cache has rank 3, must be 4");
  EXPECT_EQ(refusal([](Attention& a) {
              a.k_cache = Tensor(DType::kFloat8E4M3FN,
                                 Layout::strided({2, 16, 2, 256}, {8200, 512, 256, 1}));
            }),
            "fp8_attention_partition: k_cache has gaps between its elements, must be dense");
  EXPECT_EQ(refusal([](Attention& a) { a.contract.kv_layout = KvLayout::kDense; }),
            "fp8_attention_partition: k_cache and v_cache are 1 tensor, must be 2 under"
            " kv_layout=dense");
  EXPECT_EQ(
      refusal([](Attention& a) {
        a.contract.kv_layout = a.shape.layout = KvLayout::kDense;
        a.k_cache = Tensor(DType::kFloat8E4M3FN, Layout::dense({2, 8, 2, 256}));
      }),
      "fp8_attention_partition: v_cache is float8_e4m3fn of [2, 16, 2, 256], must be as k_cache is,"
      " float8_e4m3fn of [2, 8, 2, 256]");
  EXPECT_EQ(refusal([](Attention& a) {
              a.k_cache = Tensor(DType::kFloat8E4M3FN, Layout::dense({2, 15, 2, 256}));
            }),
            "fp8_attention_partition: k_cache has 15 pages a block, must be a multiple of 2");
  EXPECT_EQ(refusal([](Attention& a) {
              a.k_cache = Tensor(DType::kFloat8E4M3FN, Layout::dense({2, 16, 2, 250}));
            }),
            "fp8_attention_partition: k_cache has 250 elements a page and head, must be a multiple"
            " of head_dim 16");
  EXPECT_EQ(refusal([](Attention& a) {
              a.k_cache = Tensor(DType::kFloat8E4M3FN, Layout::dense({2, 16, 2, 48 * 16}));
            }),
            "fp8_attention_partition: k_cache has pages of 48 keys, must divide 256");
  EXPECT_EQ(
      refusal([](Attention& a) { a.q = poisoned(DType::kBFloat16, Layout::dense({1, 3, 16})); }),
      "fp8_attention_partition: q has 3 heads, must be a multiple of kv_heads 2");
  EXPECT_EQ(refusal([](Attention& a) { a.k_scale = {1.0f}; }),
            "fp8_attention_partition: k_scale has 1 entries, must have one for each of 2 kv heads");
  EXPECT_EQ(refusal([](Attention& a) { a.v_scale = {1.0f, 1.0f, 1.0f}; }),
            "fp8_attention_partition: v_scale has 3 entries, must have one for each of 2 kv heads");
  EXPECT_EQ(refusal([](Attention& a) { a.table = ints({2, 2, 8}, Numbers(32, 0)); }),
            "fp8_attention_partition: sparse_block_table has 2 in dimension 0, must have 1");
  EXPECT_EQ(refusal([](Attention& a) { a.contexts = ints({2, 2}, {0, 0, 0, 0}); }),
            "fp8_attention_partition: sparse_context_lens has 2 in dimension 0, must have 1");
  EXPECT_EQ(refusal([](Attention& a) { a.set_context(0, 257); }),
            "fp8_attention_partition: sparse_context_lens[0][0] is 257, must be 0 to 256");
  EXPECT_EQ(refusal([](Attention& a) { a.set_context(0, -1); }),
            "fp8_attention_partition: sparse_context_lens[0][0] is -1, must be 0 to 256");
  EXPECT_EQ(refusal([](Attention& a) { a.set_page(0, 3, 32); }),
            "fp8_attention_partition: sparse_block_table[0][0][3] is 32, must be 0 to 31");
  EXPECT_EQ(
      refusal([](Attention& a) { a.set_page(0, 3, 24); }),
      "fp8_attention_partition: sparse_block_table[0][0][3] is 24, a page of V: it is page 8 of"
      " its block, limit 7");
  EXPECT_EQ(refusal([](Attention& a) {
              Layout layout = a.k_cache.layout();
              layout.extents = {{0, 4096}, {4096, 4096}, {8192, 8192}};
              layout.extents.pop_back();
              a.k_cache = poisoned(DType::kFloat8E4M3FN, layout);
            }),
            "fp8_attention_partition: page 16 of k_cache is elements 8192 to 8703, must lie in one "
            "run of its storage, elements 0 to 4095, 4096 to 8191");
  EXPECT_EQ(refusal([](Attention& a) { a.contract.fp8_encoding = Fp8Encoding::kFnuz; }),
            "contract: fp8_max is 448, limit 240, the largest number of float8_e4m3fnuz");
}

}  // namespace
}  // namespace monoref::testing
