#include "reference/stages/expert_down.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/reference/expert_data.hpp"

namespace monoref::testing {
namespace {

constexpr int kBig = 24;  ///< 2^24 + 1 is no binary32

/// Owned inputs; route weights are 1. Units are made one element long: mid is 1 at the first k of a
/// step, and the weight there is the unit's value.
struct Down {
  std::int64_t slots;
  std::int64_t inter;
  Activations mid;
  Tensor ids;
  Tensor route;
  ExpertData w2;
  std::int64_t wide_from = 5;
  double scaling = 1;
  Contract contract{};

  Down(Numbers topk_ids, std::int64_t slots_, std::int64_t inter_, std::int64_t hidden = 32,
       std::int64_t n_routed = 4, SharedExpert shared = SharedExpert::kFused,
       MxElement element = MxElement::kFp8)
      : slots(slots_),
        inter(inter_),
        mid({static_cast<std::int64_t>(topk_ids.size()) / slots_, slots_, inter_}),
        ids(ints({static_cast<std::int64_t>(topk_ids.size()) / slots_, slots_}, topk_ids)),
        route(DType::kFloat32, Layout::dense(ids.dims())),
        w2(element, n_routed, shared, hidden, inter_) {
    for (std::int64_t i = 0; i < route.layout().elements(); ++i) set_route(i, 1.0f);
  }

  void set_route(std::int64_t at, float weight) {
    reinterpret_cast<float*>(route.base())[at] = weight;
  }
  std::int64_t id(std::int64_t row, std::int64_t slot) const {
    return ids.view<std::int32_t, 2>()(row, slot);
  }
  /// The unit (slot, step) of output row 0 becomes sign * 2^exponent in a row that has 1 there.
  void put(std::int64_t row, std::int64_t slot, std::int64_t step, float sign, int exponent = 0) {
    mid.set((row * slots + slot) * inter + step * 128, 1.0f);
    w2.set(id(row, slot), 0, step * 128, sign);
    w2.set_scale(id(row, slot), 0, step * 4, 127 + exponent);
  }
  ExpertDownInput input() const {
    return {mid.codes.view<std::uint8_t, 3>(),
            mid.scales.view<std::uint8_t, 3>(),
            ids.view<std::int32_t, 2>(),
            route.view<float, 2>(),
            w2.weights(),
            wide_from,
            scaling,
            contract};
  }
  template <class Run>
  Numbers bits(Run run) const {
    const auto dims = expert_down_shape(input());
    Tensor partial = poisoned(DType::kBFloat16, Layout::dense({dims[0], dims[1]}));
    run(input(), ExpertDownOutput{partial.view<std::uint16_t, 2>()});
    return values(partial);
  }
  Numbers bits() const {
    return bits([](const auto& in, const auto& out) { expert_down(in, out); });
  }
  /// Output row 0 of a row.
  float out(std::size_t row = 0) const {
    const Numbers all = bits();
    return float_from_bf16(
        static_cast<std::uint16_t>(all[row * all.size() / static_cast<std::size_t>(ids.dim(0))]));
  }
};

TEST(ExpertDown, OneElementFindsItsWeightItsScalesAndItsRoute) {
  for (const MxElement element : {MxElement::kFp8, MxElement::kFp4})
    for (const std::int64_t wide_from : {1, 5}) {
      Down down({3, 0, 4, 1, 2, 4}, 3, 256, 64, 4, SharedExpert::kSeparate, element);
      down.wide_from = wide_from;
      down.mid.set((3 + 1) * 256 + 200, 3.0f);  // row 1, slot 1: expert 2
      down.mid.set_scale((3 + 1) * 8 + 6, 126);
      down.w2.set(2, 37, 200, -0.5f);
      down.w2.set_scale(2, 37, 6, 130);
      down.set_route(3 + 1, 0.25f);
      const Numbers bits = down.bits();
      for (std::size_t at = 0; at < 128; ++at)  // (1.5 * -0.5 * 8) / 4
        EXPECT_EQ(bits[at], at == 64 + 37 ? bf16_from_float(-1.5f) : 0) << at;
    }
}

TEST(ExpertDown, ARouteWeightMultipliesTheFinishedDot) {
  // 128 * 2^-149 in the dot, times 2^100: weights folded into the operands would round differently.
  Down down({0}, 1, 128, 32, 4, SharedExpert::kNone);
  for (std::int64_t k = 0; k < 128; ++k) {
    down.mid.set(k, 1.0f);
    down.w2.set(0, 0, k, 1.0f);
  }
  for (std::int64_t block = 0; block < 4; ++block) {
    down.mid.set_scale(block, 127 - 75);
    down.w2.set_scale(0, 0, block, 127 - 75);
  }
  down.set_route(0, 0x1p100f);
  EXPECT_EQ(down.out(), 0.0f) << "each product of 2^-150 is a tie that goes to 0";
  for (std::int64_t block = 0; block < 4; ++block) down.w2.set_scale(0, 0, block, 127 - 74);
  EXPECT_EQ(down.out(), 0x1p-42f);
}

TEST(ExpertDown, NarrowSumsFollowTheSlotsAndWideOnesTheExperts) {
  // Slots 0, 1, 2 are experts 3, 1, 0: 2^24, 1 and -2^24 in slot order lose the 1, and in expert
  // order (-2^24 + 1) + 2^24 keep it.
  Down down({3, 1, 0, 4}, 4, 128);
  down.put(0, 0, 0, 1, kBig);
  down.put(0, 1, 0, 1);
  down.put(0, 2, 0, -1, kBig);
  EXPECT_EQ(down.out(), 0.0f);
  down.wide_from = 1;
  EXPECT_EQ(down.out(), 1.0f);
}

TEST(ExpertDown, TheFormChangesAtWideFrom) {
  for (const std::int64_t rows : {4, 5}) {
    Numbers ids;
    for (std::int64_t row = 0; row < rows; ++row)
      for (const std::int64_t id : {3, 1, 0, 4}) ids.push_back(id);
    Down down(ids, 4, 128);
    down.put(rows - 1, 0, 0, 1, kBig);
    down.put(rows - 1, 1, 0, 1);
    down.put(rows - 1, 2, 0, -1, kBig);
    EXPECT_EQ(down.out(static_cast<std::size_t>(rows - 1)), rows == 4 ? 0.0f : 1.0f);
  }
}

TEST(ExpertDown, NarrowUnitsGoToWavesInTurn) {
  // One slot of 6 steps: waves take steps {0, 4}, {1, 5}, {2}, {3}.
  const auto sum = [](std::int64_t plus, std::int64_t one, std::int64_t minus) {
    Down down({0}, 1, 768, 32, 4, SharedExpert::kNone);
    down.put(0, 0, plus, 1, kBig);
    down.put(0, 0, one, 1);
    down.put(0, 0, minus, -1, kBig);
    return down.out();
  };
  EXPECT_EQ(sum(0, 4, 1), 0.0f) << "1 is lost inside wave 0";
  EXPECT_EQ(sum(0, 1, 4), 1.0f) << "wave 0 is 0 before wave 1 adds 1";
  EXPECT_EQ(sum(0, 1, 2), 0.0f);
  EXPECT_EQ(sum(1, 2, 5), 1.0f);
  EXPECT_EQ(sum(2, 4, 3), 0.0f) << "wave 0 comes first: (1 + 2^24) - 2^24";
}

TEST(ExpertDown, NarrowUnitsRunOnFromSlotToSlot) {
  // Unit 6 * slot + step: the first step of slot 1 is unit 6, of wave 2.
  const auto sum = [](std::int64_t plus, std::int64_t one, std::int64_t minus) {
    Down down({0, 1}, 2, 768, 32, 4, SharedExpert::kNone);
    for (const auto& [unit, sign, exponent] :
         {std::tuple{plus, 1, kBig}, std::tuple{one, 1, 0}, std::tuple{minus, -1, kBig}})
      down.put(0, unit / 6, unit % 6, static_cast<float>(sign), exponent);
    return down.out();
  };
  EXPECT_EQ(sum(2, 6, 7), 0.0f) << "units 2 and 6 share wave 2, unit 7 is wave 3";
  EXPECT_EQ(sum(2, 7, 6), 1.0f);
  EXPECT_EQ(sum(6, 0, 10), 1.0f) << "units 6 and 10 cancel inside wave 2, before it meets wave 0";
}

TEST(ExpertDown, TheSharedExpertHasAccumulatorsOfItsOwnInTheNarrowForm) {
  // Shared steps 0 and 4 are wave 0 of the shared sums, which come after all routed ones.
  const auto sum = [](int routed_sign, int shared0_sign, int shared0, int shared4) {
    Down down({0, 4}, 2, 768);
    down.put(0, 0, 0, static_cast<float>(routed_sign), kBig);
    down.put(0, 1, 0, static_cast<float>(shared0_sign), shared0);
    down.put(0, 1, 4, 1, shared4);
    return down.out();
  };
  EXPECT_EQ(sum(-1, 1, kBig, 0), 0.0f) << "2^24 + 1 inside the shared wave";
  EXPECT_EQ(sum(-1, 1, 0, 0), -0x1p24f) << "1 + 1 first, rounded to BF16 at last";
  Down down({0, 4}, 2,
            768);  // routed 2^24 in wave 3, shared -2^24 in wave 0: the 1 of wave 1 stays
  down.put(0, 0, 3, 1, kBig);
  down.put(0, 1, 0, -1, kBig);
  down.put(0, 1, 1, 1);
  EXPECT_EQ(down.out(), 1.0f);
  down.put(0, 0, 0, 1);  // and one in routed wave 0, which comes before 2^24
  EXPECT_EQ(down.out(), 1.0f);
}

TEST(ExpertDown, APadRepeatsTheLastUnitAtWeightZero) {
  // 448 * 2^127 is Inf; 6 units are padded to 8, and Inf * 0 is NaN. 4 units need no pad.
  for (const std::int64_t steps : {4, 6}) {
    Down down({0}, 1, 128 * steps, 32, 4, SharedExpert::kNone);
    down.put(0, 0, steps - 1, 448, 127);
    EXPECT_EQ(std::isnan(down.out()), steps == 6) << steps;
    EXPECT_EQ(std::isinf(down.out()), steps == 4) << steps;
    down.put(0, 0, steps - 1, 0);
    down.put(0, 0, 0, 448, 127);
    EXPECT_EQ(down.out(), INFINITY) << "only the last unit is repeated";
    down.wide_from = 1;
    down.put(0, 0, steps - 1, 448, 127);
    EXPECT_EQ(down.out(), INFINITY) << "the wide form adds zeros";
  }
}

TEST(ExpertDown, WideUnitsRunOnFromExpertToExpert) {
  // 6 steps: the second expert of the list starts at unit 6, in wave 2.
  const auto sum = [](std::int64_t one, std::int64_t plus, std::int64_t minus) {
    Down down({2, 1}, 2, 768, 32, 4, SharedExpert::kNone);
    down.wide_from = 1;
    for (const auto& [unit, sign, exponent] :
         {std::tuple{one, 1, 0}, std::tuple{plus, 1, kBig}, std::tuple{minus, -1, kBig}})
      down.put(0, 1 - unit / 6, unit % 6, static_cast<float>(sign), exponent);  // slot 1 is first
    return down.out();
  };
  EXPECT_EQ(sum(2, 6, 7), 0.0f) << "units 2 and 6 share wave 2";
  EXPECT_EQ(sum(3, 6, 10), 1.0f) << "units 6 and 10 cancel in wave 2 before wave 3";
  EXPECT_EQ(sum(4, 6, 7), 0.0f) << "wave 0 first, then 2^24 and -2^24";
}

TEST(ExpertDown, OtherRowsExpertsMoveAWideRowsUnits) {
  // Alone, row 0 has experts 1 and 3 at places 0 and 1: units 0 and 1. With row 1's expert 2
  // between them expert 3 is at place 2, in wave 2, and 4 (shared, of both) in wave 3.
  const auto sum = [](std::int64_t other) {
    Down down({3, 1, 4, other, 0, 4}, 3, 128);
    down.wide_from = 2;
    down.put(0, 0, 0, 1);         // expert 3
    down.put(0, 1, 0, 1, kBig);   // expert 1
    down.put(0, 2, 0, -1, kBig);  // shared
    return down.out();
  };
  // Places with other = 1: 0, 1, 3, 4 in waves 0 to 3: 2^24, + 1, - 2^24.
  EXPECT_EQ(sum(1), 0.0f);
  // With other = 2 the shared expert is the fifth, in wave 0 before anything else: (0 - 2^24) then
  // expert 1's 2^24, then 1.
  EXPECT_EQ(sum(2), 1.0f);
}

TEST(ExpertDown, ANanInAnyExpertOfAWideStepReachesEveryRow) {
  for (const std::int64_t wide_from : {2, 3}) {
    Down down({0, 4, 1, 4}, 2, 128);
    down.wide_from = wide_from;
    down.w2.set_scale(1, 7, 3, 255);
    down.w2.set_scale(2, 9, 0, 255);  // of an expert that nobody is routed to
    const Numbers bits = down.bits();
    for (std::size_t i = 0; i < 32; ++i) {
      EXPECT_EQ(bits[32 + i], i == 7 ? 0x7FC0 : 0) << i;
      EXPECT_EQ(bits[i], i == 7 && wide_from == 2 ? 0x7FC0 : 0) << i;
    }
  }
}

TEST(ExpertDown, AnInfiniteWeightTimesTheZerosOfAnUnroutedRowIsNan) {
  Down down({0, 1}, 1, 128, 32, 4, SharedExpert::kNone);
  down.wide_from = 1;
  down.w2.set(1, 0, 77, 448.0f);
  down.w2.set_scale(1, 0, 2, 254);
  EXPECT_TRUE(std::isnan(down.out(0)));
}

// M11, M12: the factor enters once, in the routed part alone.
TEST(ExpertDown, TheRoutedFactorIsAppliedOnce) {
  constexpr float kFactor = 2.5f;
  struct Weights {
    float first, second;
  };
  for (const Weights scores : {Weights{0.625f, 0.375f}, Weights{0.875f, 0.625f}})  // sum 1, and not
    for (const std::int64_t wide_from : {1, 5}) {
      const auto out = [&](float in_weights, double on_output, RoutedScaling where) {
        Down down({0, 1, 4}, 3, 128);
        down.wide_from = wide_from;
        down.put(0, 0, 0, 1, 2);  // 4
        down.put(0, 1, 0, 1, 3);  // 8
        down.put(0, 2, 0, 1);     // the shared expert gives 1
        down.set_route(0, scores.first * in_weights);
        down.set_route(1, scores.second * in_weights);
        down.scaling = on_output;
        down.contract.routed_scaling = where;
        return down.out();
      };
      const float routed = scores.first * 4 + scores.second * 8;
      const float expected = kFactor * routed + 1;
      EXPECT_EQ(out(kFactor, 1, RoutedScaling::kWeights), expected);
      EXPECT_EQ(out(kFactor, 9, RoutedScaling::kWeights), expected) << "the scalar is not read";
      EXPECT_EQ(out(1, kFactor, RoutedScaling::kOutput), expected);
      const float unscaled = out(1, 1, RoutedScaling::kOutput);
      EXPECT_EQ(out(1, kFactor, RoutedScaling::kOutput) - 1, kFactor * (unscaled - 1));
    }
}

TEST(ExpertDown, UnderOutputScalingTheSharedSumIsApartInBothForms) {
  // 2^24 and 1 of the routed experts, -2^24 of the shared one. In one wide chain the order would be
  // 2^24, -2^24, 1; apart, 1 is lost in the routed sum.
  Down down({1, 0, 4}, 3, 768);
  down.contract.routed_scaling = RoutedScaling::kOutput;
  down.put(0, 1, 0, 1, kBig);   // wide: unit 0, wave 0
  down.put(0, 2, 4, -1, kBig);  // wide: unit 16, wave 0
  down.put(0, 0, 3, 1);         // wide: unit 9, wave 1
  for (const std::int64_t wide_from : {1, 5}) {
    down.wide_from = wide_from;
    EXPECT_EQ(down.out(), 0.0f);
  }
  down.contract.routed_scaling = RoutedScaling::kWeights;
  down.wide_from = 1;
  EXPECT_EQ(down.out(), 1.0f);
}

// M14: without routed weights the shared expert stands alone, fused or separate, in both forms.
TEST(ExpertDown, WithoutRoutedWeightsTheSharedExpertIsLeft) {
  Random random(11);
  for (const SharedExpert shared : {SharedExpert::kFused, SharedExpert::kSeparate})
    for (const std::int64_t wide_from : {1, 5}) {
      Down down({5, 2, 8, 0, 7, 8, 1, 2, 8, 6, 5, 8}, 3, 128, 32, 8, shared);
      down.wide_from = wide_from;
      for (std::int64_t row = 0; row < 4; ++row) {
        down.set_route(3 * row, 0.0f);
        down.set_route(3 * row + 1, 0.0f);
        for (std::int64_t slot = 0; slot < 3; ++slot)
          down.mid.set((row * 3 + slot) * 128, static_cast<float>(1 + row));
      }
      for (std::int64_t id = 0; id < 9; ++id)
        for (std::int64_t i = 0; i < 32; ++i)
          down.w2.set(id, i, 0, static_cast<float>(random.between(1, 15)));
      for (std::int64_t i = 0; i < 32; ++i) down.w2.set(8, i, 0, static_cast<float>(i % 16));
      const Numbers bits = down.bits();
      for (std::int64_t row = 0; row < 4; ++row)
        for (std::int64_t i = 0; i < 32; ++i)
          EXPECT_EQ(bits[static_cast<std::size_t>(row * 32 + i)],
                    bf16_from_float(static_cast<float>((1 + row) * (i % 16))));
    }
}

// M15: padded rows with ids of 2^30 have no units; live rows are as without them.
TEST(ExpertDown, IdsOfPaddedRowsAreDroppedOrRefused) {
  for (const std::int64_t wide_from : {1, 9}) {
    Random random(17);
    Down live({2, 0, 4, 1, 3, 4}, 3, 256, 32);
    live.wide_from = wide_from;
    live.w2.randomise(random);
    live.mid.randomise(random);
    Down padded({2, 0, 4, 1, 3, 4, 1 << 30, 1 << 30, 1 << 30, -1, 5, INT32_MIN}, 3, 256, 32);
    padded.wide_from = wide_from;
    padded.w2 = live.w2;
    padded.mid.randomise(random);
    std::memcpy(padded.mid.codes.base(), live.mid.codes.base(), 6 * 256);
    std::memcpy(padded.mid.scales.base(), live.mid.scales.base(), 6 * 8);
    EXPECT_EQ(refusal_of([&] { padded.bits(); }),
              "expert_down: topk_ids of row 2, slot 0 is 1073741824, must be 0 to 4");
    padded.contract.out_of_range_slot = OutOfRangeSlot::kDrop;
    Numbers expected = live.bits();
    Numbers got = padded.bits();
    got.resize(expected.size());
    EXPECT_EQ(got, expected);
  }
}

TEST(ExpertDown, ARowOfDroppedSlotsIsZero) {
  Down down({1 << 30, 1 << 30}, 2, 128);
  down.contract.out_of_range_slot = OutOfRangeSlot::kDrop;
  down.mid.codes.fill_bytes(std::byte{0x7F});
  for (const std::int64_t wide_from : {1, 5}) {
    down.wide_from = wide_from;
    EXPECT_EQ(down.bits(), Numbers(32, 0));
  }
}

// X01: 12 and 20 columns of scales lie among 16 and 24, whose last are 0xFF here.
TEST(ExpertDown, ScaleGroupsArePaddedToEight) {
  for (const MxElement element : {MxElement::kFp8, MxElement::kFp4})
    for (const std::int64_t inter : {128, 256, 384, 512, 640, 768}) {
      Down down({1}, 1, inter, 64, 8, SharedExpert::kSeparate, element);
      for (std::int64_t row = 0; row < 64; ++row)
        for (std::int64_t block = 0; block < inter / 32; ++block) {
          down.w2.set(1, row, 32 * block, 1.0f);
          down.w2.set_scale(1, row, block, 100 + (row * 7 + block) % 40);
        }
      for (std::int64_t block = 0; block < inter / 32; ++block) {
        down.mid = Activations({1, 1, inter});
        down.mid.set(32 * block, 1.0f);
        const Numbers bits = down.bits();
        for (std::int64_t row = 0; row < 64; ++row)
          EXPECT_EQ(bits[static_cast<std::size_t>(row)],
                    bf16_from_float(
                        std::ldexp(1.0f, static_cast<int>(100 + (row * 7 + block) % 40 - 127))))
              << inter << ", block " << block << ", row " << row;
      }
    }
}

TEST(ExpertDown, TheFastFormIsTheDefinition) {
  Random random(23);
  for (const std::int64_t rows : {0, 1, 4, 5, 17})
    for (const MxElement element : {MxElement::kFp8, MxElement::kFp4})
      for (const SharedExpert shared :
           {SharedExpert::kNone, SharedExpert::kFused, SharedExpert::kSeparate}) {
        Numbers ids;
        for (std::int64_t row = 0; row < rows; ++row) {
          const std::int64_t first = random.between(0, 4);
          ids.push_back(first);
          ids.push_back(row == 2 ? 99 : (first + random.between(1, 4)) % 5);
          ids.push_back(row == 3 ? -1 : 5);  // the shared expert, or none
        }
        Down down(ids, 3, rows % 2 == 0 ? 128 : 384, 64, 5, shared, element);
        down.contract.out_of_range_slot = OutOfRangeSlot::kDrop;
        down.contract.e8m0_zero = rows == 4 ? E8M0Zero::kZero : E8M0Zero::kSmallest;
        down.scaling = 2.5;
        for (std::int64_t i = 0; i < 3 * rows; ++i)
          down.set_route(i, 1.0f / static_cast<float>(random.between(1, 99)));
        down.w2.randomise(random);
        down.mid.randomise(random);
        for (const RoutedScaling scaling : {RoutedScaling::kWeights, RoutedScaling::kOutput}) {
          down.contract.routed_scaling = scaling;
          const Numbers expected = down.bits();
          for (const Isa isa : available_isas())
            EXPECT_EQ(
                down.bits([&](const auto& in, const auto& out) { expert_down_fast(in, out, isa); }),
                expected)
                << rows << " rows, " << isa_name(isa);
        }
      }
}

TEST(ExpertDown, RefusalsNameTheArgument) {
  const auto refusal = [](auto change) {
    Down down({0, 4}, 2, 128);
    change(down);
    return refusal_of([&] { expert_down_shape(down.input()); });
  };
  EXPECT_EQ(refusal([](Down& d) { d.mid = Activations({1, 2, 192}); }),
            "expert_down: inter is 192, must be a multiple of 128");
  EXPECT_EQ(refusal([](Down& d) { d.mid = Activations({1, 2, 256}); }),
            "expert_down: w2 has dims [5, 32, 128], must have [5, 32, 256]");
  EXPECT_EQ(
      refusal([](Down& d) { d.mid.scales = Tensor(DType::kUInt8, Layout::dense({1, 2, 3})); }),
      "expert_down: mid_scale has 3 in dimension 2, must have 4");
  EXPECT_EQ(refusal([](Down& d) { d.ids = ints({1, 1}, {0}); }),
            "expert_down: topk_ids has 1 in dimension 1, must have 2");
  EXPECT_EQ(refusal([](Down& d) { d.route = Tensor(DType::kFloat32, Layout::dense({1, 3})); }),
            "expert_down: topk_weights has 3 in dimension 1, must have 2");
  EXPECT_EQ(refusal([](Down& d) { d.ids = ints({1, 2}, {4, 0}); }),
            "expert_down: topk_ids of row 0 has the shared expert 4 in slot 0, must be in slot 1");
  EXPECT_EQ(refusal([](Down& d) { d.ids = ints({1, 2}, {2, 2}); }),
            "expert_down: topk_ids of row 0 has 2 in slots 0 and 1, ids must be distinct");
  EXPECT_EQ(refusal([](Down& d) { d.wide_from = 0; }),
            "expert_down: wide_from is 0, must be at least 1");
  EXPECT_EQ(refusal([](Down& d) { d.scaling = std::nan(""); }),
            "expert_down: scaling is nan, must be a number");
  EXPECT_EQ(refusal([](Down& d) { d.w2.scale() = Tensor(DType::kUInt8, Layout::dense({160, 4})); }),
            "expert_down: w2 scale has dims [160, 4], must have [160, 8]");
}

}  // namespace
}  // namespace monoref::testing
