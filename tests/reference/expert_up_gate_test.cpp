#include "reference/stages/expert_up_gate.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "reference/fast/expert_panel.hpp"
#include "tests/reference/expert_data.hpp"

namespace monoref::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Owned inputs. alpha 0 makes mid = (gate / 2) * (up + beta), which is exact by hand.
struct UpGate {
  std::int64_t inter;
  Activations x;
  Tensor ids;
  ExpertData w13;
  double limit = kInfinity;
  double alpha = 0;
  double beta = 0;
  Contract contract{};

  UpGate(Numbers topk_ids, std::int64_t slots, std::int64_t hidden, std::int64_t inter_,
         std::int64_t n_routed = 4, SharedExpert shared = SharedExpert::kNone,
         MxElement element = MxElement::kFp8)
      : inter(inter_),
        x({static_cast<std::int64_t>(topk_ids.size()) / slots, hidden}),
        ids(ints({static_cast<std::int64_t>(topk_ids.size()) / slots, slots}, topk_ids)),
        w13(element, n_routed, shared, 2 * inter_, hidden) {}

  ExpertUpGateInput input() const {
    return {x.codes.view<std::uint8_t, 2>(),
            x.scales.view<std::uint8_t, 2>(),
            ids.view<std::int32_t, 2>(),
            w13.weights(),
            limit,
            alpha,
            beta,
            contract};
  }
  template <class Run>
  Numbers bits(Run run) const {
    const auto dims = expert_up_gate_shape(input());
    Tensor mid = poisoned(DType::kBFloat16, Layout::dense({dims[0], dims[1], dims[2]}));
    run(input(), ExpertUpGateOutput{mid.view<std::uint16_t, 3>()});
    return values(mid);
  }
  Numbers bits() const {
    return bits([](const auto& in, const auto& out) { expert_up_gate(in, out); });
  }
  float mid(std::size_t at) const {
    return float_from_bf16(static_cast<std::uint16_t>(bits()[at]));
  }
};

// G05: the first half of an expert's rows are gates.
TEST(ExpertUpGate, OneElementFindsItsWeights) {
  for (const MxElement element : {MxElement::kFp8, MxElement::kFp4}) {
    UpGate stage({0, 2, 1, 3}, 2, 512, 64, 4, SharedExpert::kNone, element);
    stage.x.set(512 + 300, 3.0f);  // row 1, whose slot 1 is expert 3
    stage.x.set_scale(16 + 9, 128);
    stage.w13.set(3, 21, 300, -0.5f);
    stage.w13.set_scale(3, 21, 9, 129);
    stage.w13.set(3, 64 + 21, 300, 1.5f);
    stage.w13.set(3, 64 + 22, 300, 1.5f);  // an up row whose gate row is zero
    const Numbers bits = stage.bits();
    // gate = 6 * -0.5 * 4 = -12, up = 6 * 1.5 = 9, mid = -6 * 9
    for (std::size_t at = 0; at < bits.size(); ++at)
      EXPECT_EQ(bits[at], at == 3 * 64 + 21 ? bf16_from_float(-54.0f) : 0) << at;
  }
}

TEST(ExpertUpGate, InHalvesAndAlternatingRowsAreDifferentFunctions) {
  // G05 with rows g0 = 1, g1 = 2, u0 = 3, u1 = 5 by hand: alternating, mid would be 3 and 10
  // halves.
  UpGate stage({0}, 1, 256, 32);
  stage.x.set(0, 1.0f);
  stage.w13.set(0, 0, 0, 1.0f);
  stage.w13.set(0, 1, 0, 2.0f);
  stage.w13.set(0, 32, 0, 3.0f);
  stage.w13.set(0, 33, 0, 5.0f);
  EXPECT_EQ(stage.mid(0), 1.5f);
  EXPECT_EQ(stage.mid(1), 5.0f);
}

TEST(ExpertUpGate, TheLowNibbleIsTheEvenElement) {
  UpGate stage({0}, 1, 256, 32, 4, SharedExpert::kNone, MxElement::kFp4);
  stage.x.set(6, 1.0f);
  stage.w13.set_code(0, 0, 6, 0x7);   // 6
  stage.w13.set_code(0, 0, 7, 0x2);   // 1
  stage.w13.set_code(0, 32, 6, 0xA);  // -1
  EXPECT_EQ(stage.mid(0), -3.0f);
}

// X05: every block has a scale of its own, over 40 binades.
TEST(ExpertUpGate, EveryScaleIsFoundInItsPlace) {
  constexpr std::int64_t kHidden = 256, kInter = 128;
  const auto scale = [](std::int64_t row, std::int64_t block) {
    return 100 + (row * 7 + block) % 40;
  };
  for (const MxElement element : {MxElement::kFp8, MxElement::kFp4}) {
    UpGate stage({1}, 1, kHidden, kInter, 2, SharedExpert::kNone, element);
    for (std::int64_t row = 0; row < 2 * kInter; ++row)
      for (std::int64_t k = 0; k < kHidden; ++k) {
        stage.w13.set(1, row, k, 1.0f);
        stage.w13.set_scale(1, row, k / 32, scale(row, k / 32));
      }
    for (std::int64_t block = 0; block < kHidden / 32; ++block) {
      stage.x = Activations({1, kHidden});
      stage.x.set(32 * block + 31, 1.0f);
      const Numbers bits = stage.bits();
      for (std::int64_t i = 0; i < kInter; ++i)
        EXPECT_EQ(
            bits[static_cast<std::size_t>(i)],
            bf16_from_float(std::ldexp(1.0f, static_cast<int>(scale(i, block) - 127 +
                                                              scale(kInter + i, block) - 127 - 1))))
            << "block " << block << ", row " << i;
    }
  }
}

// X06 and X07: all bytes times 0.5, 1 and 6. 134 is 128, 255 is NaN, 0 is 2^-127 or zero.
TEST(ExpertWeights, EveryScaleByteTimesEveryKindOfCode) {
  ExpertData data(MxElement::kFp4, 1, SharedExpert::kSeparate, 32, 256);
  for (const float code : {0.5f, 1.0f, 6.0f})
    for (std::int64_t byte = 0; byte < 256; ++byte)
      for (const std::int32_t id : {0, 1}) {
        data.set(id, 5, 40, code);
        data.set_scale(id, 5, 1, byte);
        float got = 0;
        read_weights(expert_matrix(data.weights(), id), 5, 40, E8M0Zero::kSmallest, {&got, 1});
        if (byte == 255)
          EXPECT_TRUE(same_float(got, kCanonicalNan)) << code;
        else
          EXPECT_EQ(got, static_cast<float>(
                             std::ldexp(static_cast<double>(code), static_cast<int>(byte) - 127)))
              << code << " under byte " << byte;
        if (byte != 0) continue;
        read_weights(expert_matrix(data.weights(), id), 5, 40, E8M0Zero::kZero, {&got, 1});
        EXPECT_TRUE(same_float(got, 0.0f)) << code;
      }
  EXPECT_EQ(mx_activation(0x38, 134, E8M0Zero::kSmallest), 128.0f);
  EXPECT_EQ(mx_activation(0x38, 0, E8M0Zero::kSmallest), 0x1p-127f);
  EXPECT_EQ(mx_activation(0x38, 0, E8M0Zero::kZero), 0.0f);
  EXPECT_EQ(mx_activation(0x7E, 254, E8M0Zero::kSmallest), INFINITY) << "448 * 2^127";
}

TEST(ExpertWeights, EveryPanelIsTheDefinition) {
  // 256 blocks have a scale byte each; 8 rounds give every block every code.
  for (const MxElement element : {MxElement::kFp8, MxElement::kFp4}) {
    ExpertData data(element, 1, SharedExpert::kNone, 32, 256);
    for (std::int64_t round = 0; round < 8; ++round) {
      for (std::int64_t row = 0; row < 32; ++row)
        for (std::int64_t k = 0; k < 256; ++k) {
          const std::int64_t code = round * 32 + k % 32;
          data.set_code(0, row, k,
                        static_cast<std::uint32_t>(element == MxElement::kFp8 ? code : code & 0xF));
          data.set_scale(0, row, k / 32, row * 8 + k / 32);
        }
      const ExpertMatrix matrix = expert_matrix(data.weights(), 0);
      for (const E8M0Zero zero : {E8M0Zero::kSmallest, E8M0Zero::kZero})
        for (const Isa isa : available_isas())
          for (const std::int64_t first_row : {0, 16})
            for (const std::int64_t first_k : {0, 128}) {
              std::vector<float> panel(kExpertPanel);
              decode_expert_panel(matrix, first_row, first_k, zero, panel.data(), isa);
              for (std::int64_t row = 0; row < 16; ++row) {
                std::vector<float> expected(kExpertStep);
                read_weights(matrix, first_row + row, first_k, zero, expected);
                for (std::size_t k = 0; k < expected.size(); ++k)
                  ASSERT_TRUE(
                      same_float(panel[k * 16 + static_cast<std::size_t>(row)], expected[k]))
                      << "row " << first_row + row << ", k " << first_k << " + " << k << ", round "
                      << round << ", " << isa_name(isa);
              }
            }
    }
  }
}

TEST(ExpertUpGate, WavesOwnNeighbouringStepsAndAreAddedInOrder) {
  // 10 steps: 8 waves take 2 each, so that 5 have any. The gate's steps: 2^24 in step 0, 1 in steps
  // 2 and 3 of wave 1, -2^24 in step 9.
  UpGate stage({0}, 1, 1280, 32);
  const auto put = [&](std::int64_t step, float weight, std::int64_t scale) {
    stage.x.set(step * 128, 1.0f);
    stage.w13.set(0, 0, step * 128, weight);
    stage.w13.set_scale(0, 0, step * 4, scale);
  };
  stage.beta = 2;  // up is 0: mid is the gate
  put(0, 1.0f, 127 + 24);
  put(9, -1.0f, 127 + 24);
  put(2, 1.0f, 127);
  put(3, 1.0f, 127);
  EXPECT_EQ(stage.mid(0), 2.0f) << "1 + 1 first, then into 2^24";
  put(3, 0.0f, 127);
  put(4, 1.0f, 127);
  EXPECT_EQ(stage.mid(0), 0.0f) << "one at a time, each lost in 2^24";
  put(4, 0.0f, 127);
  put(8, 1.0f, 127);
  EXPECT_EQ(stage.mid(0), 1.0f) << "1 - 2^24 is a binary32, and the last wave's sum";
}

TEST(ExpertUpGate, EightStepsAreEightWaves) {
  UpGate stage({0}, 1, 1024, 32);
  stage.beta = 2;
  const auto put = [&](std::int64_t step, float weight, std::int64_t scale) {
    stage.x.set(step * 128, 1.0f);
    stage.w13.set(0, 0, step * 128, weight);
    stage.w13.set_scale(0, 0, step * 4, scale);
  };
  put(0, 1.0f, 127 + 24);
  put(2, 1.0f, 127);
  put(3, 1.0f, 127);
  put(7, -1.0f, 127 + 24);
  EXPECT_EQ(stage.mid(0), 0.0f) << "steps 2 and 3 are waves of their own";
}

TEST(ExpertUpGate, GateAndUpAreSummedSeparatelyAndGoThroughSwiglu) {
  // G01 through the stage, by the routed and by the shared expert, separate and fused.
  for (const SharedExpert shared : {SharedExpert::kFused, SharedExpert::kSeparate}) {
    UpGate stage({2, 4}, 2, 256, 32, 4, shared);
    stage.limit = 7;
    stage.alpha = 1.702;
    stage.beta = 1;
    stage.x.set(0, 1.0f);
    for (const std::int64_t id : {2, 4}) {
      stage.w13.set(id, 0, 0, 1.0f);
      stage.w13.set(id, 32, 0, 1.0f);
      stage.w13.set(id, 1, 0, 10.0f);
      stage.w13.set(id, 33, 0, 3.0f);
    }
    const Numbers bits = stage.bits();
    for (const std::size_t slot : {0u, 1u}) {
      EXPECT_EQ(bits[slot * 32], 0x3FD9) << "1.69159";
      EXPECT_EQ(bits[slot * 32 + 1], 0x41E0) << "27.9998";
    }
  }
}

TEST(ExpertUpGate, TheSeparateSharedExpertIsMxfp8BesideMxfp4) {
  UpGate stage({1, 2}, 2, 256, 32, 2, SharedExpert::kSeparate, MxElement::kFp4);
  stage.beta = 2;
  stage.x.set(9, 1.0f);
  stage.w13.set(1, 7, 9, 6.0f);
  stage.w13.set(2, 7, 9, 448.0f);
  const Numbers bits = stage.bits();
  EXPECT_EQ(bits[7], bf16_from_float(6.0f));
  EXPECT_EQ(bits[32 + 7], bf16_from_float(448.0f));
}

// X03: every element is written, whatever tile a kernel prefers.
TEST(ExpertUpGate, TheLastRowsAreWritten) {
  for (const std::int64_t inter : {32, 96, 160, 224}) {
    UpGate stage({0}, 1, 256, inter);
    stage.beta = 2;
    stage.x.set(0, 1.0f);
    stage.w13.set(0, inter - 1, 0, 1.0f);
    const Numbers bits = stage.bits();
    ASSERT_EQ(static_cast<std::int64_t>(bits.size()), inter);
    for (std::int64_t i = 0; i < inter; ++i)
      EXPECT_EQ(bits[static_cast<std::size_t>(i)], i == inter - 1 ? 0x3F80 : 0) << inter;
  }
}

TEST(ExpertUpGate, NanBytesReachTheirRowAlone) {
  UpGate stage({0, 0}, 1, 256, 32);
  stage.w13.set_scale(0, 3, 0, 255);            // 0 * NaN
  stage.x.codes.base()[256] = std::byte{0x7F};  // a NaN code in row 1
  const Numbers bits = stage.bits();
  for (std::size_t i = 0; i < 32; ++i) {
    EXPECT_EQ(bits[i], i == 3 ? 0x7FC0 : 0) << i;
    EXPECT_EQ(bits[32 + i], 0x7FC0) << i;
  }
}

// M15: ids of padded rows are garbage; live rows do not notice.
TEST(ExpertUpGate, IdsOfPaddedRowsAreDroppedOrRefused) {
  UpGate live({2, 0, 1, 3}, 2, 256, 32, 4, SharedExpert::kNone);
  Random random(3);
  live.w13.randomise(random);
  live.x.randomise(random);
  live.beta = 1;
  UpGate padded({2, 0, 1, 3, 1 << 30, 1 << 30, -1, INT32_MIN}, 2, 256, 32, 4, SharedExpert::kNone);
  padded.w13 = live.w13;
  padded.x.randomise(random);
  std::memcpy(padded.x.codes.base(), live.x.codes.base(), 2 * 256);
  std::memcpy(padded.x.scales.base(), live.x.scales.base(), 2 * 8);
  padded.beta = 1;
  EXPECT_EQ(refusal_of([&] { padded.bits(); }),
            "expert_up_gate: topk_ids of row 2, slot 0 is 1073741824, must be 0 to 3");
  padded.contract.out_of_range_slot = OutOfRangeSlot::kDrop;
  Numbers expected = live.bits();
  expected.resize(8 * 32, 0);
  EXPECT_EQ(padded.bits(), expected) << "mid of a dropped slot is +0";
}

TEST(ExpertUpGate, OnlyRoutedExpertsNeedStorage) {
  UpGate stage({1, 3}, 2, 256, 32);
  stage.beta = 2;
  stage.x.set(0, 1.0f);
  stage.w13.set(3, 0, 0, 5.0f);
  const auto keep = [](Tensor& tensor, std::int64_t run) {
    Layout layout = tensor.layout();
    layout.extents = {{run, run}, {3 * run, run}};
    Tensor sparse(DType::kUInt8, layout);
    for (const Extent& extent : layout.extents)
      std::memcpy(sparse.bytes(extent).data(), tensor.base() + extent.offset,
                  static_cast<std::size_t>(extent.count));
    tensor = sparse;
  };
  keep(stage.w13.weight(), 64 * 256);
  keep(stage.w13.scale(), 64 * 8);
  EXPECT_EQ(stage.mid(32), 5.0f);
  stage.ids = ints({1, 2}, {1, 2});
  EXPECT_EQ(refusal_of([&] { expert_up_gate_shape(stage.input()); }),
            "expert_up_gate: topk_ids of row 0, slot 1 is 2, whose weights are elements 32768 to "
            "49151, must be stored in one run: there are elements 16384 to 32767, 49152 to 65535");
}

TEST(ExpertUpGate, TheFastFormIsTheDefinition) {
  Random random(5);
  for (const std::int64_t rows : {0, 1, 3, 9, 17})
    for (const MxElement element : {MxElement::kFp8, MxElement::kFp4})
      for (const SharedExpert shared :
           {SharedExpert::kNone, SharedExpert::kFused, SharedExpert::kSeparate}) {
        Numbers ids;
        for (std::int64_t row = 0; row < rows; ++row) {
          const std::int64_t first = random.between(0, 2);
          ids.push_back(first);
          ids.push_back(row == 2 ? -5 : (first + random.between(1, 2)) % 3);
          ids.push_back(3);  // the shared expert, or none
        }
        UpGate stage(ids, 3, rows % 2 == 0 ? 256 : 1280, 32, 3, shared, element);
        stage.limit = 7;
        stage.alpha = 1.702;
        stage.beta = 1;
        stage.contract.out_of_range_slot = OutOfRangeSlot::kDrop;
        stage.contract.e8m0_zero = rows == 3 ? E8M0Zero::kZero : E8M0Zero::kSmallest;
        stage.w13.randomise(random);
        stage.x.randomise(random);
        const Numbers expected = stage.bits();
        for (const Isa isa : available_isas())
          EXPECT_EQ(stage.bits([&](const auto& in, const auto& out) {
            expert_up_gate_fast(in, out, isa);
          }),
                    expected)
              << rows << " rows, " << isa_name(isa);
      }
}

TEST(ExpertUpGate, RefusalsNameTheArgument) {
  const auto refusal = [](auto change) {
    UpGate stage({0, 1}, 2, 256, 32);
    change(stage);
    return refusal_of([&] { expert_up_gate_shape(stage.input()); });
  };
  EXPECT_EQ(refusal([](UpGate& s) { s.x = Activations({1, 384}); }),
            "expert_up_gate: hidden is 384, must be a multiple of 256");
  EXPECT_EQ(refusal([](UpGate& s) { s.x = Activations({1, 512}); }),
            "expert_up_gate: w13 has dims [4, 64, 256], must have [4, 64, 512]");
  EXPECT_EQ(refusal([](UpGate& s) { s.x.scales = Tensor(DType::kUInt8, Layout::dense({1, 7})); }),
            "expert_up_gate: x_scale has 7 in dimension 1, must have 8");
  EXPECT_EQ(refusal([](UpGate& s) { s.ids = ints({2, 1}, {0, 1}); }),
            "expert_up_gate: topk_ids has 2 in dimension 0, must have 1");
  EXPECT_EQ(refusal([](UpGate& s) { s.ids = ints({1, 2}, {1, 1}); }),
            "expert_up_gate: topk_ids of row 0 has 1 in slots 0 and 1, ids must be distinct");
  EXPECT_EQ(refusal([](UpGate& s) { s.ids = ints({1, 2}, {1, 4}); }),
            "expert_up_gate: topk_ids of row 0, slot 1 is 4, must be 0 to 3");
  EXPECT_EQ(refusal([](UpGate& s) { s.ids = Tensor(DType::kInt32, Layout::dense({1, 17})); }),
            "expert_up_gate: topk_ids has 17 slots, must have 1 to 16");
  EXPECT_EQ(refusal([](UpGate& s) { s.ids = Tensor(DType::kInt32, Layout::dense({1, 0})); }),
            "expert_up_gate: topk_ids has 0 slots, must have 1 to 16");
  EXPECT_EQ(refusal([](UpGate& s) { s.limit = 1e-50; }),
            "expert_up_gate: limit is 1e-50, must be above 0 in binary32");
  EXPECT_EQ(refusal([](UpGate& s) { s.limit = 0; }),
            "expert_up_gate: limit is 0, must be above 0 in binary32");
  EXPECT_EQ(refusal([](UpGate& s) {
              s.w13 = ExpertData(MxElement::kFp8, 4, SharedExpert::kNone, 48, 256);
            }),
            "expert_up_gate: w13 has 48 rows an expert, must be a multiple of 32");
  EXPECT_EQ(refusal([](UpGate& s) {
              s.w13 = ExpertData(MxElement::kFp8, 4, SharedExpert::kNone, 96, 256);
            }),
            "expert_up_gate: inter is 48, half the rows of w13, must be a multiple of 32");
  EXPECT_EQ(refusal([](UpGate& s) {
              s.w13.weight() = Tensor(DType::kUInt8, Layout::dense({6, 64, 256}));
            }),
            "expert_up_gate: w13 has 6 experts, must be n_routed, 4, or one more");
  EXPECT_EQ(refusal([](UpGate& s) {
              s.w13.weight() =
                  Tensor(DType::kUInt8, Layout::strided({4, 64, 256}, {16640, 260, 1}));
            }),
            "expert_up_gate: w13 has strides [16640, 260, 1], must be dense, [16384, 256, 1]");
  EXPECT_EQ(
      refusal([](UpGate& s) { s.w13.scale() = Tensor(DType::kBFloat16, Layout::dense({256, 8})); }),
      "expert_up_gate: w13 scale is bfloat16, must be uint8");
}

TEST(ExpertUpGate, RefusalsOfTheSharedExpert) {
  UpGate stage({0, 1}, 2, 256, 32, 4, SharedExpert::kSeparate);
  stage.w13.weight() = Tensor(DType::kUInt8, Layout::dense({5, 64, 256}));
  EXPECT_EQ(refusal_of([&] { expert_up_gate_shape(stage.input()); }),
            "expert_up_gate: w13 has 5 experts, must be n_routed, 4, beside a separate shared one");
  stage.w13.weight() = Tensor(DType::kUInt8, Layout::dense({4, 64, 256}));
  stage.w13.shared_scale() = Tensor(DType::kUInt8, Layout::dense({32, 8}));
  EXPECT_EQ(refusal_of([&] { expert_up_gate_shape(stage.input()); }),
            "expert_up_gate: w13 shared scale has dims [32, 8], must have [64, 8]");
  stage.w13.shared_scale().reset();
  EXPECT_EQ(refusal_of([&] { expert_up_gate_shape(stage.input()); }),
            "expert_up_gate: w13: the shared expert has 'weights' alone, must have weights and "
            "scales or neither");
}

}  // namespace
}  // namespace monoref::testing
