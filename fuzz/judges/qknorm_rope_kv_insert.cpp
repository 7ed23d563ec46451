// vLLM's fused CUDA kernel for head norms, rotation and cache insertion (upstream-semantics section
// 3.3): rsqrt.approx, the compiler's own contraction, nothing rounded between norm and rotation.
#include <algorithm>
#include <optional>

#include "fuzz/judges/judge.hpp"
#include "reference/formats/convert.hpp"
#include "reference/rules/stage_checks.hpp"
#include "reference/stages/qk_norm_rope.hpp"

namespace monoref {
namespace {

constexpr std::int64_t kHeadDim = 128;
using Index = OutputJudge::Index;

/// What one recorded case holds, under the names of its parts.
struct Recorded {
  View<const std::uint16_t, 2> qkv;
  View<const std::int64_t, 1> positions;
  View<const std::uint16_t, 2> cos_sin;
  HeadShape shape;
  float eps;
};

/// Ranges of one head after norm and rotation.
std::vector<Bounded> head_bounds(const Recorded& in, std::int64_t row, std::int64_t start,
                                 const View<const std::uint16_t, 1>& gamma) {
  const Rounding& rn = kCorrectRoundingOrFlush;
  std::vector<Bounded> squares;
  for (std::int64_t d = 0; d < kHeadDim; ++d)
    squares.push_back(square(Bounded::exactly(float_from_bf16(in.qkv(row, start + d))), rn));
  const Bounded mean = divide(sum(squares, rn), Bounded::exactly(kHeadDim), rn);
  const Bounded r =
      reciprocal_square_root(add(mean, Bounded::exactly(in.eps), rn), kApproximateRsq);
  std::vector<Bounded> normed;
  for (std::int64_t d = 0; d < kHeadDim; ++d) {
    const Bounded e = Bounded::exactly(float_from_bf16(in.qkv(row, start + d)));
    const Bounded gain = add(Bounded::exactly(1), Bounded::exactly(float_from_bf16(gamma(d))), rn);
    normed.push_back(
        either(multiply(multiply(e, r, rn), gain, rn), multiply(e, multiply(r, gain, rn), rn)));
  }
  std::vector<Bounded> rotated = normed;
  const std::int64_t half = in.shape.rotary_dim / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    const std::int64_t position = in.positions(row);
    const Bounded c = Bounded::exactly(float_from_bf16(in.cos_sin(position, i)));
    const Bounded s = Bounded::exactly(float_from_bf16(in.cos_sin(position, half + i)));
    const auto first = static_cast<std::size_t>(i);
    const auto second = static_cast<std::size_t>(i + half);
    rotated[first] = subtract(multiply(normed[first], c, rn), multiply(normed[second], s, rn), rn);
    rotated[second] = add(multiply(normed[second], c, rn), multiply(normed[first], s, rn), rn);
  }
  return rotated;
}

/// Our own results for all heads, in the stated order.
struct Own {
  Tensor q, k, index_q, index_k;
};

Own own_heads(const RecordedCase& recorded, const Recorded& in) {
  const std::int64_t n = in.qkv.dim(0);
  Own own{Tensor(DType::kBFloat16, Layout::dense({n, in.shape.q_heads, kHeadDim})),
          Tensor(DType::kFloat32, Layout::dense({n, in.shape.kv_heads, kHeadDim})),
          Tensor(DType::kBFloat16, Layout::dense({n, in.shape.index_q_heads, kHeadDim})),
          Tensor(DType::kFloat32, Layout::dense({n, 1, kHeadDim}))};
  const auto gamma = [&](const char* name) {
    return recorded.input(name).view<std::uint16_t, 1>();
  };
  qk_norm_rope({in.qkv, in.positions, in.cos_sin, gamma("q_norm"), gamma("k_norm"),
                gamma("index_q_norm"), gamma("index_k_norm"), in.eps, in.shape},
               {own.q.view<std::uint16_t, 3>(), own.k.view<float, 3>(),
                own.index_q.view<std::uint16_t, 3>(), own.index_k.view<float, 3>()});
  return own;
}

/// A cache [blocks, heads, block size, width] as rows of one head and slot.
struct CacheRows {
  const Tensor& tensor;
  std::int64_t heads;
  std::int64_t block_size;
  std::int64_t width;

  std::uint32_t at(std::int64_t slot, std::int64_t head, std::int64_t column) const {
    const std::int64_t row = (slot / block_size * heads + head) * block_size + slot % block_size;
    const std::byte* bytes =
        tensor.base() + (row * width + column) * static_cast<std::int64_t>(tensor.element_size());
    return tensor.element_size() == 1 ? std::to_integer<std::uint32_t>(bytes[0])
                                      : std::to_integer<std::uint32_t>(bytes[0]) |
                                            std::to_integer<std::uint32_t>(bytes[1]) << 8;
  }
};

/// Elements that stand for FP8 where the tensor has one byte an element, BF16 where it has two.
struct Target {
  bool fp8;
  std::uint32_t encode(float value) const {
    return fp8 ? encode_fp8(kE4M3FN, value, Overflow::kSaturate) : bf16_from_float(value);
  }
  CodeRange range(const Bounded& value) const {
    return fp8 ? code_range(value, kE4M3FN, Overflow::kSaturate)
               : code_range(value, kBF16, Overflow::kInfinity);
  }
};

/// Slots that no row names must keep their bits, byte for byte.
void judge_untouched(const std::string& name, const Tensor& before, const Tensor& after,
                     std::int64_t heads, std::int64_t block_size, std::int64_t width,
                     const View<const std::int64_t, 1>& slots, RunResult& result) {
  OutputJudge output(name, result);
  std::vector<bool> named(static_cast<std::size_t>(before.dim(0) * block_size));
  for (std::int64_t row = 0; row < slots.dim(0); ++row)
    if (slots(row) >= 0) named[static_cast<std::size_t>(slots(row))] = true;
  const CacheRows old{before, heads, block_size, width};
  const CacheRows now{after, heads, block_size, width};
  for (std::int64_t slot = 0; slot < static_cast<std::int64_t>(named.size()); ++slot) {
    if (named[static_cast<std::size_t>(slot)]) continue;
    for (std::int64_t head = 0; head < heads; ++head)
      for (std::int64_t column = 0; column < width; ++column)
        output.bits({{"slot", slot}, {"head", head}, {"column", column}},
                    old.at(slot, head, column), now.at(slot, head, column));
  }
}

/// The queries: BF16 (index q also FP8), and q once more as FP8 of its recorded BF16 value.
void judge_queries(const RecordedCase& recorded, const Recorded& in, const Own& own,
                   RunResult& result) {
  OutputJudge q("q", result);
  OutputJudge index_q("index_q", result);
  OutputJudge q_fp8("q_fp8", result);
  const auto got_q = recorded.output("q").view<std::uint16_t, 2>();
  const auto got_fp8 = recorded.output("q_fp8").view<std::uint8_t, 2>();
  const Tensor& got_index = recorded.output("index_q");
  const Target target{got_index.element_size() == 1};
  const CacheRows index_rows{got_index, 1, 1, got_index.dim(1)};
  const auto scale = static_cast<float>(recorded.real("q_fp8_inv_scale"));
  for (std::int64_t row = 0; row < in.qkv.dim(0); ++row) {
    for (std::int64_t head = 0; head < in.shape.q_heads; ++head) {
      const auto bounds =
          head_bounds(in, row, head * kHeadDim, recorded.input("q_norm").view<std::uint16_t, 1>());
      for (std::int64_t d = 0; d < kHeadDim; ++d) {
        const std::uint16_t got = got_q(row, head * kHeadDim + d);
        const Index index{{"row", row}, {"head", head}, {"dim", d}};
        q.code(index, own.q.view<std::uint16_t, 3>()(row, head, d),
               code_range(bounds[static_cast<std::size_t>(d)], kBF16, Overflow::kInfinity), got);
        q_fp8.bits(index, encode_fp8(kE4M3FN, float_from_bf16(got) * scale, Overflow::kSaturate),
                   got_fp8(row, head * kHeadDim + d));
      }
    }
    for (std::int64_t head = 0; head < in.shape.index_q_heads; ++head) {
      const auto bounds = head_bounds(in, row, in.shape.index_q_start() + head * kHeadDim,
                                      recorded.input("index_q_norm").view<std::uint16_t, 1>());
      for (std::int64_t d = 0; d < kHeadDim; ++d)
        index_q.code(
            {{"row", row}, {"head", head}, {"dim", d}},
            target.encode(float_from_bf16(own.index_q.view<std::uint16_t, 3>()(row, head, d))),
            target.range(bounds[static_cast<std::size_t>(d)]),
            index_rows.at(row, 0, head * kHeadDim + d));
    }
  }
}

/// Keys: rewritten in the projection row as BF16, and stored in their cache if the slot is live.
void judge_keys(const RecordedCase& recorded, const Recorded& in, const std::string& name,
                const Tensor& own, std::int64_t start, const char* gamma, const CacheRows& cache,
                const View<const std::int64_t, 1>& slots, RunResult& result) {
  OutputJudge in_row(name + "_in_row", result);
  OutputJudge in_cache(name + "_in_cache", result);
  const auto row_after = recorded.output("qkv").view<std::uint16_t, 2>();
  const Target target{cache.tensor.element_size() == 1};
  for (std::int64_t row = 0; row < in.qkv.dim(0); ++row)
    for (std::int64_t head = 0; head < cache.heads; ++head) {
      const auto bounds = head_bounds(in, row, start + head * kHeadDim,
                                      recorded.input(gamma).view<std::uint16_t, 1>());
      for (std::int64_t d = 0; d < kHeadDim; ++d) {
        const Index index{{"row", row}, {"head", head}, {"dim", d}};
        const Bounded& bound = bounds[static_cast<std::size_t>(d)];
        const float value = own.view<float, 3>()(row, head, d);
        in_row.code(index, bf16_from_float(value), code_range(bound, kBF16, Overflow::kInfinity),
                    row_after(row, start + head * kHeadDim + d));
        if (slots(row) >= 0)
          in_cache.code(index, target.encode(value), target.range(bound),
                        cache.at(slots(row), head, d));
      }
    }
}

/// V goes from the projection's BF16 value to the cache, bits or one conversion: exactly.
void judge_values(const Recorded& in, const CacheRows& cache,
                  const View<const std::int64_t, 1>& slots, RunResult& result) {
  OutputJudge output("v_in_cache", result);
  const Target target{cache.tensor.element_size() == 1};
  for (std::int64_t row = 0; row < in.qkv.dim(0); ++row) {
    if (slots(row) < 0) continue;
    for (std::int64_t head = 0; head < cache.heads; ++head)
      for (std::int64_t d = 0; d < kHeadDim; ++d)
        output.bits(
            {{"row", row}, {"head", head}, {"dim", d}},
            target.encode(float_from_bf16(in.qkv(row, in.shape.v_start() + head * kHeadDim + d))),
            cache.at(slots(row), head, kHeadDim + d));
  }
}

/// Heads of each kind as the row of a projection holds them: q, k, v, index q and one index k.
HeadShape head_shape(const RecordedCase& recorded, std::int64_t row) {
  const std::int64_t most = row / kHeadDim;
  const HeadShape shape{.q_heads = recorded.integer("num_heads", 1, most),
                        .kv_heads = recorded.integer("num_kv_heads", 1, most),
                        .index_q_heads = recorded.integer("num_index_heads", 1, most),
                        .head_dim = kHeadDim,
                        .rotary_dim = recorded.integer("rotary_dim", 2, kHeadDim)};
  const std::int64_t heads = shape.q_heads + 2 * shape.kv_heads + shape.index_q_heads + 1;
  recorded.input("qkv", {{DType::kBFloat16}, {kAnyExtent, heads * kHeadDim}});
  return shape;
}

/// A cache that the case also has as it was before.
void check_cache(const RecordedCase& recorded, const char* name,
                 const std::vector<std::int64_t>& dims) {
  const Tensor& cache = recorded.output(name, {{DType::kBFloat16, DType::kUInt8}, dims});
  recorded.input(name, {{cache.type()}, cache.dims()});
}

/// Sizes that fit each other, and positions and slots that there are.
void check_sizes(const RecordedCase& recorded, const HeadShape& shape, std::int64_t block_size) {
  const std::vector<DType> bf16{DType::kBFloat16};
  const Tensor& qkv = recorded.input("qkv");
  const std::int64_t rows = qkv.dim(0);
  const Tensor& cos_sin = recorded.input("cos_sin", {bf16, {kAnyExtent, shape.rotary_dim}});
  recorded.indices("positions", {{DType::kInt64}, {rows}}, 0, cos_sin.dim(0) - 1);
  for (const char* name : {"q_norm", "k_norm", "index_q_norm", "index_k_norm"})
    recorded.input(name, {bf16, {kHeadDim}});
  check_cache(recorded, "kv_cache", {kAnyExtent, shape.kv_heads, block_size, 2 * kHeadDim});
  check_cache(recorded, "index_cache", {kAnyExtent, block_size, kHeadDim});
  recorded.indices("slot_mapping", {{DType::kInt64}, {rows}}, -1,
                   recorded.output("kv_cache").dim(0) * block_size - 1);
  recorded.indices("index_slot_mapping", {{DType::kInt64}, {rows}}, -1,
                   recorded.output("index_cache").dim(0) * block_size - 1);
  recorded.output("qkv", {bf16, qkv.dims()});
  recorded.output("q", {bf16, {rows, shape.q_heads * kHeadDim}});
  recorded.output("q_fp8", {{DType::kUInt8}, {rows, shape.q_heads * kHeadDim}});
  recorded.output("index_q",
                  {{DType::kBFloat16, DType::kUInt8}, {rows, shape.index_q_heads * kHeadDim}});
}

}  // namespace

void judge_qknorm_rope_kv_insert(const RecordedCase& recorded, RunResult& result) {
  const Tensor& qkv = recorded.input("qkv", {{DType::kBFloat16}, {kAnyExtent, kAnyExtent}});
  const HeadShape heads = head_shape(recorded, qkv.dim(1));
  const std::int64_t block_size = recorded.integer("block_size", 1, kInt32Max);
  check_sizes(recorded, heads, block_size);
  const Recorded in{qkv.view<std::uint16_t, 2>(),
                    recorded.input("positions").view<std::int64_t, 1>(),
                    recorded.input("cos_sin").view<std::uint16_t, 2>(), heads,
                    static_cast<float>(recorded.real("eps", 0, 1))};
  const auto slots = recorded.input("slot_mapping").view<std::int64_t, 1>();
  const auto index_slots = recorded.input("index_slot_mapping").view<std::int64_t, 1>();
  const CacheRows kv{recorded.output("kv_cache"), in.shape.kv_heads, block_size, 2 * kHeadDim};
  const CacheRows index_cache{recorded.output("index_cache"), 1, block_size, kHeadDim};
  const Own own = own_heads(recorded, in);
  judge_queries(recorded, in, own, result);
  judge_keys(recorded, in, "k", own.k, in.shape.k_start(), "k_norm", kv, slots, result);
  judge_keys(recorded, in, "index_k", own.index_k, in.shape.index_k_start(), "index_k_norm",
             index_cache, index_slots, result);
  judge_values(in, kv, slots, result);
  judge_untouched("kv_cache_untouched", recorded.input("kv_cache"), recorded.output("kv_cache"),
                  in.shape.kv_heads, block_size, 2 * kHeadDim, slots, result);
  judge_untouched("index_cache_untouched", recorded.input("index_cache"),
                  recorded.output("index_cache"), 1, block_size, kHeadDim, index_slots, result);
}

}  // namespace monoref
