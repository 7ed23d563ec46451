// vLLM's native MXFP8 experts for MiniMax-M3 (upstream-semantics sections 7.3 to 7.5), with every
// intermediate result: each stage is judged from the recorded input of that stage.
#include "fuzz/judges/judge.hpp"
#include "fuzz/judges/swiglu_bound.hpp"
#include "reference/arithmetic/minmax.hpp"
#include "reference/arithmetic/reduce.hpp"
#include "reference/formats/convert.hpp"
#include "reference/formats/mx_block.hpp"
#include "reference/rules/swiglu.hpp"

#include <algorithm>
#include <cmath>
#include <span>

namespace monoref {
namespace {

constexpr std::size_t kStep = 128;
constexpr auto kBlock = static_cast<std::int64_t>(kMxBlock);

/// A row of MXFP8 as numbers. On the device they are BF16, which holds them exactly.
std::vector<float> mx_row(const Tensor& codes, const Tensor& scales, std::int64_t row) {
  const auto width = static_cast<std::size_t>(codes.dims().back());
  const auto blocks = static_cast<std::size_t>(scales.dims().back());
  const auto* code = reinterpret_cast<const std::uint8_t*>(codes.base());
  const auto* scale = reinterpret_cast<const std::uint8_t*>(scales.base());
  const auto at = static_cast<std::size_t>(row);
  std::vector<float> values(width);
  mx_dequantize(MxElement::kFp8, E8M0Zero::kSmallest, Subnormals::kKeep, {code + at * width, width},
                {scale + at * blocks, blocks}, values);
  return values;
}

/// Our own dot: steps of 128 are chains, added in order.
float step_dot(std::span<const float> a, std::span<const float> b) {
  std::vector<float> partials;
  for (std::size_t k = 0; k < a.size(); k += kStep)
    partials.push_back(fma_chain(a.subspan(k, kStep), b.subspan(k, kStep), 0.0f));
  return sum_in_order(partials, SumStart::kZero);
}

/// The sizes of a recorded case; a pair is a token's slot.
struct Sizes {
  std::int64_t tokens, slots, hidden, inter, experts;

  explicit Sizes(const RecordedCase& recorded) {
    const Tensor& x = recorded.input("hidden", {{DType::kBFloat16}, {kAnyExtent, kAnyExtent}});
    tokens = x.dim(0);
    hidden = x.dim(1);
    const Tensor& w2 =
        recorded.input("w2", {{DType::kFloat8E4M3FN}, {kAnyExtent, hidden, kAnyExtent}});
    experts = w2.dim(0);
    inter = w2.dim(2);
    slots = recorded.indices("topk_ids", {{DType::kInt32}, {tokens, kAnyExtent}}, 0, experts - 1)
                .dim(1);
    for (const auto& [name, width] : {std::pair{"hidden", hidden}, std::pair{"w2", inter}})
      if (width % static_cast<std::int64_t>(kStep) != 0)
        refuse("{} has {} elements in a row, must have a multiple of {}",
               recorded.place(fmt::format("input {}", name)), width, kStep);
    check_tensors(recorded);
    check_work(recorded, {tokens, slots, 3, inter, hidden});
  }

 private:
  void check_tensors(const RecordedCase& recorded) const {
    const std::int64_t pairs = tokens * slots;
    const std::vector<DType> fp8{DType::kFloat8E4M3FN};
    const std::vector<DType> scale{DType::kUInt8};
    const std::vector<DType> bf16{DType::kBFloat16};
    const std::vector<DType> f32{DType::kFloat32};
    recorded.input("topk_weights", {f32, {tokens, slots}});
    recorded.input("w13", {fp8, {experts, 2 * inter, hidden}});
    recorded.input("w13_scale", {scale, {experts, 2 * inter, hidden / kBlock}});
    recorded.input("w2_scale", {scale, {experts, hidden, inter / kBlock}});
    recorded.output("hidden_q", {fp8, {tokens, hidden}});
    recorded.output("hidden_scale", {scale, {tokens, hidden / kBlock}});
    recorded.output("gate_up", {bf16, {pairs, 2 * inter}});
    recorded.output("act_q", {fp8, {pairs, inter}});
    recorded.output("act_scale", {scale, {pairs, inter / kBlock}});
    recorded.output("expert_out", {f32, {pairs, hidden}});
    recorded.output("out", {bf16, {tokens, hidden}});
  }
};

std::int32_t expert_of(const RecordedCase& recorded, const Sizes& sizes, std::int64_t pair) {
  return recorded.input("topk_ids").view<std::int32_t, 2>()(pair / sizes.slots, pair % sizes.slots);
}

/// The tokens under rule e: the recording's inputs decide every bit.
void judge_hidden(const RecordedCase& recorded, const Sizes& sizes, RunResult& result) {
  const auto hidden = recorded.input("hidden").view<std::uint16_t, 2>();
  const auto got_codes = recorded.output("hidden_q").view<std::uint8_t, 2>();
  const auto got_scales = recorded.output("hidden_scale").view<std::uint8_t, 2>();
  OutputJudge codes("hidden_q", result);
  OutputJudge scales("hidden_scale", result);
  std::vector<float> x(static_cast<std::size_t>(sizes.hidden));
  std::vector<std::uint8_t> own_codes(x.size()), own_scales(x.size() / kMxBlock);
  for (std::int64_t token = 0; token < sizes.tokens; ++token) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = float_from_bf16(hidden(token, i));
    mx_quantize(MxElement::kFp8, MxScaleRule::kE, Overflow::kSaturate, x, own_codes, own_scales);
    for (std::int64_t i = 0; i < sizes.hidden; ++i)
      codes.bits({{"token", token}, {"element", i}}, own_codes[static_cast<std::size_t>(i)],
                 got_codes(token, i));
    for (std::int64_t block = 0; block < sizes.hidden / kBlock; ++block)
      scales.bits({{"token", token}, {"block", block}}, own_scales[static_cast<std::size_t>(block)],
                  got_scales(token, block));
  }
}

/// gate | up of every pair, from the recorded tokens.
void judge_gate_up(const RecordedCase& recorded, const Sizes& sizes, RunResult& result) {
  const auto got = recorded.output("gate_up").view<std::uint16_t, 2>();
  OutputJudge output("gate_up", result);
  for (std::int64_t pair = 0; pair < got.dim(0); ++pair) {
    const auto x =
        mx_row(recorded.output("hidden_q"), recorded.output("hidden_scale"), pair / sizes.slots);
    for (std::int64_t row = 0; row < 2 * sizes.inter; ++row) {
      const auto w = mx_row(recorded.input("w13"), recorded.input("w13_scale"),
                            expert_of(recorded, sizes, pair) * 2 * sizes.inter + row);
      output.code({{"pair", pair}, {"row", row}}, bf16_from_float(step_dot(x, w)),
                  code_range(dot(x, w, 0.0f, kHopperMatrixUnit), kBF16, Overflow::kInfinity),
                  got(pair, row));
    }
  }
}

/// One block of activations: ours, and what the device may have.
struct ActivationBlock {
  std::vector<float> own;
  std::vector<Bounded> ranges;
  Bounded amax = Bounded::exactly(0);

  void add(float gate, float up, const RecordedCase& recorded, const SwigluRule& rule) {
    own.push_back(swiglu(gate, up, rule));
    ranges.push_back(swiglu_bound(nan_min(gate, rule.limit), nan_clamp(up, -rule.limit, rule.limit),
                                  recorded.real("alpha"), recorded.real("beta")));
    amax = maximum(amax, absolute(ranges.back()));
  }
};

/// Rule e of an end of a range; it never falls where amax rises.
int scale_of_end(double amax, double towards) {
  auto end = static_cast<float>(amax);
  if (towards > amax ? end < amax : end > amax)
    end = std::nextafter(end, static_cast<float>(towards));
  return mx_scale(MxScaleRule::kE, MxElement::kFp8, end);
}

void judge_block(const ActivationBlock& block, std::int64_t pair, std::int64_t at,
                 const RecordedCase& recorded, OutputJudge& codes, OutputJudge& scales) {
  std::vector<std::uint8_t> own_codes(kMxBlock);
  std::uint8_t own_scale = 0;
  mx_quantize(MxElement::kFp8, MxScaleRule::kE, Overflow::kSaturate, block.own, own_codes,
              {&own_scale, 1});
  const int got_scale = recorded.output("act_scale").view<std::uint8_t, 2>()(pair, at);
  const int low = scale_of_end(block.amax.low, 0.0);
  const int high = scale_of_end(block.amax.high, INFINITY);
  scales.id({{"pair", pair}, {"block", at}}, own_scale, low <= got_scale && got_scale <= high,
            got_scale, fmt::format("{} to {}", low, high));
  const double inverse = std::ldexp(1.0, 127 - got_scale);
  for (std::int64_t i = 0; i < kBlock; ++i) {
    Bounded scaled = block.ranges[static_cast<std::size_t>(i)];
    scaled.low *= inverse;
    scaled.high *= inverse;
    codes.code({{"pair", pair}, {"element", at * kBlock + i}},
               own_codes[static_cast<std::size_t>(i)],
               code_range(scaled, kE4M3FN, Overflow::kSaturate),
               recorded.output("act_q").view<std::uint8_t, 2>()(pair, at * kBlock + i));
  }
}

/// SwiGLU of the recorded gate and up, quantised from binary32. Where a bound leaves the scale
/// open, codes are judged under the scale that was taken.
void judge_activation(const RecordedCase& recorded, const Sizes& sizes, RunResult& result) {
  const auto gate_up = recorded.output("gate_up").view<std::uint16_t, 2>();
  const SwigluRule rule = swiglu_rule("mxfp8_moe", recorded.real("limit"), recorded.real("alpha"),
                                      recorded.real("beta"), {});
  OutputJudge codes("act_q", result);
  OutputJudge scales("act_scale", result);
  for (std::int64_t pair = 0; pair < gate_up.dim(0); ++pair)
    for (std::int64_t at = 0; at < sizes.inter / kBlock; ++at) {
      ActivationBlock block;
      for (std::int64_t i = at * kBlock; i < (at + 1) * kBlock; ++i)
        block.add(float_from_bf16(gate_up(pair, i)),
                  float_from_bf16(gate_up(pair, sizes.inter + i)), recorded, rule);
      judge_block(block, pair, at, recorded, codes, scales);
    }
}

/// Every pair's dot times its route weight, from the recorded activations.
void judge_expert_out(const RecordedCase& recorded, const Sizes& sizes, RunResult& result) {
  const auto weights = recorded.input("topk_weights").view<float, 2>();
  const auto got = recorded.output("expert_out").view<float, 2>();
  OutputJudge output("expert_out", result);
  for (std::int64_t pair = 0; pair < got.dim(0); ++pair) {
    const auto x = mx_row(recorded.output("act_q"), recorded.output("act_scale"), pair);
    const float weight = weights(pair / sizes.slots, pair % sizes.slots);
    for (std::int64_t row = 0; row < sizes.hidden; ++row) {
      const auto w = mx_row(recorded.input("w2"), recorded.input("w2_scale"),
                            expert_of(recorded, sizes, pair) * sizes.hidden + row);
      output.number({{"pair", pair}, {"row", row}}, canonical(step_dot(x, w) * weight),
                    multiply(dot(x, w, 0.0f, kHopperMatrixUnit), Bounded::exactly(weight),
                             kCorrectRoundingOrFlush),
                    got(pair, row));
    }
  }
}

/// The sum over a token's slots, in any order.
void judge_out(const RecordedCase& recorded, const Sizes& sizes, RunResult& result) {
  const auto parts = recorded.output("expert_out").view<float, 2>();
  const auto got = recorded.output("out").view<std::uint16_t, 2>();
  OutputJudge output("out", result);
  for (std::int64_t token = 0; token < sizes.tokens; ++token)
    for (std::int64_t i = 0; i < sizes.hidden; ++i) {
      std::vector<float> terms;
      std::vector<Bounded> ranges;
      for (std::int64_t slot = 0; slot < sizes.slots; ++slot) {
        terms.push_back(parts(token * sizes.slots + slot, i));
        ranges.push_back(Bounded::exactly(terms.back()));
      }
      output.code({{"token", token}, {"element", i}},
                  bf16_from_float(sum_in_order(terms, SumStart::kZero)),
                  code_range(sum(ranges, kCorrectRoundingOrFlush), kBF16, Overflow::kInfinity),
                  got(token, i));
    }
}

}  // namespace

void judge_mxfp8_moe(const RecordedCase& recorded, RunResult& result) {
  const Sizes sizes(recorded);
  judge_hidden(recorded, sizes, result);
  judge_gate_up(recorded, sizes, result);
  judge_activation(recorded, sizes, result);
  judge_expert_out(recorded, sizes, result);
  judge_out(recorded, sizes, result);
}

}  // namespace monoref
