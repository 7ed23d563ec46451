// The stages against recordings of vLLM's kernels, which round, order and approximate in ways of
// their own. Every recorded element must lie in the range that the running error analysis proves
// for those freedoms, carried through the rounding to BF16 or FP8; so must ours. Nothing here is a
// picked tolerance: the errors of hardware functions are those stated with the recordings.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "golden/recording.hpp"
#include "reference/arithmetic/bounded.hpp"
#include "reference/arithmetic/code_range.hpp"
#include "reference/formats/convert.hpp"
#include "reference/kv_cache_insert.hpp"
#include "reference/qk_norm_rope.hpp"
#include "reference/residual_norm_quant.hpp"

namespace monoref {
namespace {

using Bf16Matrix = View<const std::uint16_t, 2>;
using Bf16Vector = View<const std::uint16_t, 1>;

Recording recorded(const std::string& name) {
  return read_recording(std::string(MONOREF_RECORDED_DIR) + "/" + name + ".h5");
}

/// How the elements of a recording were found to lie.
struct Tally {
  std::size_t elements = 0;
  std::size_t compared = 0;  ///< with a code of ours
  std::size_t equal = 0;     ///< to it
  std::size_t outside = 0;   ///< not in the proven range
  std::size_t ours_outside = 0;
  std::size_t neighbour_outside = 0;  ///< a code one off would have been noticed

  /// Where we have no code of our own to compare.
  void add(const CodeRange& range, std::uint32_t theirs) {
    ++elements;
    outside += range.admits(theirs) ? 0 : 1;
    neighbour_outside += range.admits(theirs ^ 1) ? 0 : 1;
  }
  void add(const CodeRange& range, std::uint32_t theirs, std::uint32_t ours) {
    add(range, theirs);
    ++compared;
    equal += theirs == ours ? 1 : 0;
    ours_outside += range.admits(ours) ? 0 : 1;
  }
  void check(const std::string& name) const {
    EXPECT_GT(elements, 0u) << name;
    EXPECT_EQ(outside, 0u) << name << ", of " << elements;
    EXPECT_EQ(ours_outside, 0u) << name << ", of " << elements;
    EXPECT_GT(2 * neighbour_outside, elements) << name << ": the ranges are too wide to judge by";
    const std::string share = std::to_string(equal) + " of " + std::to_string(compared);
    ::testing::Test::RecordProperty(name + "_bit_equal", share);
    std::printf("%s: %zu inside, %s bit-equal, %zu decided to the last place\n", name.c_str(),
                elements, share.c_str(), neighbour_outside);
  }
};

std::vector<Bounded> exact(const std::vector<float>& values) {
  std::vector<Bounded> made;
  for (const float value : values) made.push_back(Bounded::exactly(value));
  return made;
}

/// Mean square plus eps, additions in any order.
Bounded mean_square(const std::vector<Bounded>& row, float eps) {
  std::vector<Bounded> squares;
  for (const Bounded& x : row) squares.push_back(square(x, kCorrectRoundingOrFlush));
  const Bounded mean =
      divide(sum(squares, kCorrectRoundingOrFlush),
             Bounded::exactly(static_cast<double>(row.size())), kApproximateDivision);
  return add(mean, Bounded::exactly(eps), kCorrectRoundingOrFlush);
}

/// (x * r) * (1 + w)
Bounded scaled(const Bounded& x, const Bounded& r, std::uint16_t weight) {
  const Bounded factor =
      add(Bounded::exactly(float_from_bf16(weight)), Bounded::exactly(1), kCorrectRoundingOrFlush);
  return multiply(multiply(x, r, kCorrectRoundingOrFlush), factor, kCorrectRoundingOrFlush);
}

/// vLLM's Triton norm: square root and division as operations, a tree sum of unstated order.
std::vector<Bounded> gemma_norm(const std::vector<float>& sums, const Bf16Vector& weight,
                                float eps) {
  const std::vector<Bounded> row = exact(sums);
  const Bounded root = square_root(mean_square(row, eps), kCorrectRoundingOrFlush);
  const Bounded r = divide(Bounded::exactly(1), root, kApproximateDivision);
  std::vector<Bounded> y;
  for (std::size_t i = 0; i < row.size(); ++i) y.push_back(scaled(row[i], r, weight(i)));
  return y;
}

std::vector<float> sums_of(const Bf16Matrix& x, const Bf16Matrix* residual, std::int64_t row) {
  std::vector<float> sums;
  for (std::int64_t i = 0; i < x.dim(1); ++i)
    sums.push_back(float_from_bf16(x(row, i)) +
                   (residual == nullptr ? 0.0f : float_from_bf16((*residual)(row, i))));
  return sums;
}

void compare_norm(const std::vector<float>& sums, const Bf16Vector& weight, float eps,
                  const Bf16Matrix& recorded_norm, std::int64_t row, Tally& tally) {
  const auto bounds = gemma_norm(sums, weight, eps);
  const auto ours = input_norm(sums, weight, eps);
  for (std::size_t i = 0; i < sums.size(); ++i)
    tally.add(code_range(bounds[i], kBF16, Overflow::kInfinity), recorded_norm(row, i),
              bf16_from_float(ours[i]));
}

TEST(RecordedNorm, GemmaRmsNormOfVllm) {
  const Recording recording = recorded("gemma_rmsnorm");
  Tally plain;
  Tally fused;
  for (const RecordedCase& item : recording.cases) {
    const Bf16Matrix x = item.input("x").view<std::uint16_t, 2>();
    const Bf16Matrix residual = item.input("residual").view<std::uint16_t, 2>();
    const Bf16Vector weight = item.input("weight").view<std::uint16_t, 1>();
    const auto eps = static_cast<float>(item.real("eps"));
    const auto recorded_residual = item.output("residual_out").view<std::uint16_t, 2>();
    for (std::int64_t row = 0; row < x.dim(0); ++row) {
      compare_norm(sums_of(x, nullptr, row), weight, eps,
                   item.output("norm").view<std::uint16_t, 2>(), row, plain);
      compare_norm(sums_of(x, &residual, row), weight, eps,
                   item.output("fused_norm").view<std::uint16_t, 2>(), row, fused);
      const auto sums = sums_of(x, &residual, row);
      for (std::size_t i = 0; i < sums.size(); ++i)
        EXPECT_EQ(recorded_residual(row, i), bf16_from_float(sums[i])) << item.title;
    }
  }
  plain.check("norm");
  fused.check("fused_norm");
}

/// One recorded case of the fused kernel, with our results and the proven ranges.
class FusedCase {
 public:
  explicit FusedCase(const RecordedCase& item)
      : item_(item),
        shape_{.q_heads = item.integer("num_heads"),
               .kv_heads = item.integer("num_kv_heads"),
               .index_q_heads = item.integer("num_index_heads"),
               .head_dim = item.input("q_norm").dim(0),
               .rotary_dim = item.integer("rotary_dim")},
        mode_(item.word("mode")),
        qkv_(item.input("qkv").view<std::uint16_t, 2>()) {
    run_ours();
  }

  std::int64_t rows() const { return qkv_.dim(0); }

  void compare(std::array<Tally, 7>& tallies) const {
    for (std::int64_t row = 0; row < rows(); ++row) {
      compare_queries(row, tallies[0], tallies[1]);
      compare_keys(row, tallies[2], tallies[3]);
      compare_index_queries(row, tallies[4], tallies[5]);
      compare_index_keys(row, tallies[6]);
    }
  }

  /// V bytes as recorded, every row without a slot left alone, and nothing else touched.
  void compare_storage() const {
    const Tensor& before = item_.input("kv_cache");
    const Tensor& after = item_.output("kv_cache");
    std::vector<bool> written(static_cast<std::size_t>(before.layout().elements()), false);
    for (std::int64_t row = 0; row < rows(); ++row) {
      if (slot(row) < 0) continue;
      for (std::int64_t head = 0; head < shape_.kv_heads; ++head)
        for (std::int64_t d = 0; d < shape_.head_dim; ++d) {
          written[static_cast<std::size_t>(cache_offset(row, head, d))] = true;
          const std::int64_t v = cache_offset(row, head, shape_.head_dim + d);
          written[static_cast<std::size_t>(v)] = true;
          EXPECT_EQ(code(after, v), our_cache(row, head, d, true))
              << item_.title << ": V of row " << row << ", head " << head << ", dim " << d;
        }
    }
    for (std::size_t i = 0; i < written.size(); ++i)
      if (!written[i]) {
        ASSERT_EQ(code(after, static_cast<std::int64_t>(i)),
                  code(before, static_cast<std::int64_t>(i)))
            << item_.title << ": untouched element " << i << " of the K/V cache";
      }
  }

  void compare_index_storage() const {
    const Tensor& before = item_.input("index_cache");
    const Tensor& after = item_.output("index_cache");
    std::vector<bool> written(static_cast<std::size_t>(before.layout().elements()), false);
    for (std::int64_t row = 0; row < rows(); ++row)
      for (std::int64_t d = 0; d < shape_.head_dim && index_slot(row) >= 0; ++d)
        written[static_cast<std::size_t>(index_slot(row) * shape_.head_dim + d)] = true;
    for (std::size_t i = 0; i < written.size(); ++i)
      if (!written[i]) {
        ASSERT_EQ(code(after, static_cast<std::int64_t>(i)),
                  code(before, static_cast<std::int64_t>(i)))
            << item_.title << ": untouched element " << i << " of the index cache";
      }
  }

  /// The row is rewritten in place where k and index k stand, and nowhere else.
  void compare_projection() const {
    const Bf16Matrix after = item_.output("qkv").view<std::uint16_t, 2>();
    for (std::int64_t row = 0; row < rows(); ++row)
      for (std::int64_t i = 0; i < shape_.row_width(); ++i) {
        const bool is_k = i >= shape_.k_start() && i < shape_.v_start();
        if (!is_k && i < shape_.index_k_start()) {
          ASSERT_EQ(after(row, i), qkv_(row, i));
        }
      }
  }

 private:
  /// What the kernel may have computed for one head: rsqrt.approx and compiler contraction.
  std::vector<Bounded> head_bounds(std::int64_t row, std::int64_t start, const char* norm) const {
    const Bf16Vector weight = item_.input(norm).view<std::uint16_t, 1>();
    std::vector<float> e;
    for (std::int64_t d = 0; d < shape_.head_dim; ++d)
      e.push_back(float_from_bf16(qkv_(row, start + d)));
    const std::vector<Bounded> head = exact(e);
    const auto eps = static_cast<float>(item_.real("eps"));
    const Bounded r = reciprocal_square_root(mean_square(head, eps), kApproximateRsq);
    std::vector<Bounded> n;
    for (std::size_t d = 0; d < head.size(); ++d) n.push_back(scaled(head[d], r, weight(d)));
    return turned(std::move(n), row);
  }

  std::vector<Bounded> turned(std::vector<Bounded> n, std::int64_t row) const {
    const Bf16Matrix table = item_.input("cos_sin").view<std::uint16_t, 2>();
    const std::int64_t position = item_.input("positions").view<std::int64_t, 1>()(row);
    const auto half = static_cast<std::size_t>(shape_.rotary_dim / 2);
    for (std::size_t i = 0; i < half; ++i) {
      const Bounded cos = Bounded::exactly(float_from_bf16(table(position, i)));
      const Bounded sin = Bounded::exactly(float_from_bf16(table(position, half + i)));
      const auto times = [](const Bounded& a, const Bounded& b) {
        return multiply(a, b, kCorrectRoundingOrFlush);
      };
      const Bounded first =
          subtract(times(n[i], cos), times(n[half + i], sin), kCorrectRoundingOrFlush);
      n[half + i] = add(times(n[half + i], cos), times(n[i], sin), kCorrectRoundingOrFlush);
      n[i] = first;
    }
    return n;
  }

  void compare_queries(std::int64_t row, Tally& q, Tally& q_fp8) const {
    const Bf16Matrix recorded_q = item_.output("q").view<std::uint16_t, 2>();
    const auto recorded_fp8 = item_.output("q_fp8").view<std::uint8_t, 2>();
    const double inverse_scale = item_.real("q_fp8_inv_scale");
    for (std::int64_t head = 0; head < shape_.q_heads; ++head) {
      const auto bounds = head_bounds(row, head * shape_.head_dim, "q_norm");
      for (std::int64_t d = 0; d < shape_.head_dim; ++d) {
        const std::int64_t column = head * shape_.head_dim + d;
        const std::uint16_t ours = q_.view<std::uint16_t, 3>()(row, head, d);
        const Bounded& bound = bounds[static_cast<std::size_t>(d)];
        q.add(code_range(bound, kBF16, Overflow::kInfinity), recorded_q(row, column), ours);
        const Bounded scaled_q = multiply(rounded_to(bound, kBF16, Overflow::kInfinity),
                                          Bounded::exactly(inverse_scale), kCorrectRounding);
        const float our_scaled = float_from_bf16(ours) * static_cast<float>(inverse_scale);
        q_fp8.add(code_range(scaled_q, kE4M3FN, Overflow::kSaturate), recorded_fp8(row, column),
                  encode(kE4M3FN, our_scaled, Overflow::kSaturate));
      }
    }
  }

  /// In the projection's row as BF16, and in the cache.
  void compare_keys(std::int64_t row, Tally& in_row, Tally& in_cache) const {
    const Bf16Matrix after = item_.output("qkv").view<std::uint16_t, 2>();
    for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
      const std::int64_t start = shape_.k_start() + head * shape_.head_dim;
      const auto bounds = head_bounds(row, start, "k_norm");
      for (std::int64_t d = 0; d < shape_.head_dim; ++d) {
        const Bounded& bound = bounds[static_cast<std::size_t>(d)];
        in_row.add(code_range(bound, kBF16, Overflow::kInfinity), after(row, start + d),
                   bf16_from_float(k_.view<float, 3>()(row, head, d)));
        if (slot(row) >= 0)
          in_cache.add(cached(bound, mode_ != "bf16"),
                       code(item_.output("kv_cache"), cache_offset(row, head, d)),
                       our_cache(row, head, d, false));
      }
    }
  }

  void compare_index_queries(std::int64_t row, Tally& bf16, Tally& fp8) const {
    const Tensor& recorded_q = item_.output("index_q");
    for (std::int64_t head = 0; head < shape_.index_q_heads; ++head) {
      const std::int64_t start = shape_.index_q_start() + head * shape_.head_dim;
      const auto bounds = head_bounds(row, start, "index_q_norm");
      for (std::int64_t d = 0; d < shape_.head_dim; ++d) {
        const Bounded& bound = bounds[static_cast<std::size_t>(d)];
        const std::uint32_t theirs =
            code(recorded_q, (row * shape_.index_q_heads + head) * shape_.head_dim + d);
        if (mode_ == "fp8idx")  // converted from binary32; our stage gives BF16 only
          fp8.add(cached(bound, true), theirs);
        else
          bf16.add(cached(bound, false), theirs, index_q_.view<std::uint16_t, 3>()(row, head, d));
      }
    }
  }

  void compare_index_keys(std::int64_t row, Tally& tally) const {
    const Bf16Matrix after = item_.output("qkv").view<std::uint16_t, 2>();
    const auto bounds = head_bounds(row, shape_.index_k_start(), "index_k_norm");
    for (std::int64_t d = 0; d < shape_.head_dim; ++d) {
      const Bounded& bound = bounds[static_cast<std::size_t>(d)];
      const float ours = index_k_.view<float, 3>()(row, 0, d);
      tally.add(code_range(bound, kBF16, Overflow::kInfinity),
                after(row, shape_.index_k_start() + d), bf16_from_float(ours));
      if (index_slot(row) < 0) continue;
      const bool fp8 = mode_ == "fp8idx";
      tally.add(
          cached(bound, fp8),
          code(item_.output("index_cache"), index_slot(row) * shape_.head_dim + d),
          fp8 ? encode(kE4M3FN, ours, Overflow::kSaturate) : std::uint32_t{bf16_from_float(ours)});
    }
  }

  /// FP8 is converted from the unrounded number and clamped.
  static CodeRange cached(const Bounded& bound, bool fp8) {
    return fp8 ? code_range(bound, kE4M3FN, Overflow::kSaturate)
               : code_range(bound, kBF16, Overflow::kInfinity);
  }

  std::int64_t slot(std::int64_t row) const {
    return item_.input("slot_mapping").view<std::int64_t, 1>()(row);
  }
  std::int64_t index_slot(std::int64_t row) const {
    return item_.input("index_slot_mapping").view<std::int64_t, 1>()(row);
  }
  /// [blocks, kv heads, block size, 2 * head_dim]
  std::int64_t cache_offset(std::int64_t row, std::int64_t head, std::int64_t element) const {
    const std::int64_t size = item_.integer("block_size");
    const std::int64_t block = slot(row) / size;
    return ((block * shape_.kv_heads + head) * size + slot(row) % size) * 2 * shape_.head_dim +
           element;
  }
  static std::uint32_t code(const Tensor& tensor, std::int64_t element) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, tensor.base() + element * static_cast<std::int64_t>(tensor.element_size()),
                tensor.element_size());
    return bits;
  }
  std::uint32_t our_cache(std::int64_t row, std::int64_t head, std::int64_t d, bool is_v) const {
    const KvElement at{slot(row), head, d};
    const Tensor& cache = is_v ? v_cache_ : k_cache_;
    const std::int64_t byte = is_v ? v_byte(pages_, at) : k_byte(pages_, at);
    return code(cache, byte / pages_.element_size);
  }

  void run_ours() {
    const auto heads = [&](DType type, std::int64_t count) {
      return Tensor(type, Layout::dense({rows(), count, shape_.head_dim}));
    };
    q_ = heads(DType::kBFloat16, shape_.q_heads);
    k_ = heads(DType::kFloat32, shape_.kv_heads);
    index_q_ = heads(DType::kBFloat16, shape_.index_q_heads);
    index_k_ = heads(DType::kFloat32, 1);
    const auto norm = [&](const char* name) { return item_.input(name).view<std::uint16_t, 1>(); };
    qk_norm_rope({qkv_, item_.input("positions").view<std::int64_t, 1>(),
                  item_.input("cos_sin").view<std::uint16_t, 2>(), norm("q_norm"), norm("k_norm"),
                  norm("index_q_norm"), norm("index_k_norm"), item_.real("eps"), shape_},
                 {q_.view<std::uint16_t, 3>(), k_.view<float, 3>(),
                  index_q_.view<std::uint16_t, 3>(), index_k_.view<float, 3>()});
    insert_ours();
  }

  /// Into dense planes of ours, which are read back element by element.
  void insert_ours() {
    const DType type = mode_ == "bf16" ? DType::kBFloat16 : DType::kFloat8E4M3FN;
    const std::int64_t blocks = item_.input("kv_cache").dim(0);
    const std::int64_t size = item_.integer("block_size");
    const Layout plane = Layout::dense({blocks, size / 16, shape_.kv_heads, shape_.head_dim * 16});
    k_cache_ = Tensor(type, plane);
    v_cache_ = Tensor(type, plane);
    Tensor index_cache(type, Layout::dense({blocks, size, shape_.head_dim}));
    const std::int64_t width = shape_.row_width();
    const View<const std::uint16_t, 3> v(qkv_.data() + shape_.v_start(),
                                         {rows(), shape_.kv_heads, shape_.head_dim},
                                         {width, shape_.head_dim, 1});
    const KvCacheInsertInput input{
        k_.view<float, 3>(),
        v,
        index_k_.view<float, 3>(),
        item_.input("slot_mapping"),
        k_cache_,
        v_cache_,
        index_cache,
        1.0,
        1.0,
        Contract::parse("mono,kv_layout=dense,key_source=unrounded,fp8_overflow=saturate")};
    pages_ = kv_cache_insert_shape(input);
    kv_cache_insert(input, {k_cache_, v_cache_, index_cache});
  }

  const RecordedCase& item_;
  HeadShape shape_;
  std::string mode_;
  Bf16Matrix qkv_;
  KvPageShape pages_;
  Tensor q_, k_, index_q_, index_k_, k_cache_, v_cache_;
};

TEST(RecordedNorm, FusedQkNormRopeAndInsertOfVllm) {
  const Recording recording = recorded("qknorm_rope_kv_insert");
  std::array<Tally, 7> tallies;
  for (const RecordedCase& item : recording.cases) {
    const FusedCase fused(item);
    fused.compare(tallies);
    fused.compare_storage();
    fused.compare_index_storage();
    fused.compare_projection();
  }
  constexpr std::array<const char*, 7> kNames{"q",       "q_fp8",       "k_in_row", "k_in_cache",
                                              "index_q", "index_q_fp8", "index_k"};
  for (std::size_t i = 0; i < kNames.size(); ++i) tallies[i].check(kNames[i]);
}

}  // namespace
}  // namespace monoref
