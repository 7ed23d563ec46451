#include "reference/stages/qk_norm_rope.hpp"

#include <cmath>
#include <span>
#include <string_view>
#include <vector>

#include "reference/arithmetic/reduce.hpp"
#include "reference/formats/convert.hpp"
#include "reference/rules/rms.hpp"
#include "reference/rules/stage_checks.hpp"

namespace monoref {
namespace {

constexpr std::int64_t kLanes = 32;
constexpr std::int64_t kDimsPerLane = 4;
constexpr std::int64_t kMaxHeads = 1024;

using Gamma = View<const std::uint16_t, 1>;
using Head = std::vector<float>;

void require_between(std::string_view name, std::int64_t value, std::int64_t least,
                     std::int64_t most) {
  if (value < least || value > most)
    refuse("qk_norm_rope: {} is {}, must be {} to {}", name, value, least, most);
}

void require_multiple(std::string_view name, std::int64_t value, std::int64_t factor) {
  if (value % factor != 0)
    refuse("qk_norm_rope: {} is {}, must be a multiple of {}", name, value, factor);
}

Head load_head(const QkNormRopeInput& input, std::int64_t row, std::int64_t start) {
  Head head(static_cast<std::size_t>(input.shape.head_dim));
  for (std::size_t d = 0; d < head.size(); ++d)
    head[d] = float_from_bf16(input.qkv(row, start + static_cast<std::int64_t>(d)));
  return head;
}

float sum_of_squares(std::span<const float> head) {
  static const std::vector<int> offsets = halving_offsets(kLanes / 2);
  std::vector<float> lanes;
  for (std::size_t first = 0; first < head.size(); first += kDimsPerLane) {
    const auto own = head.subspan(first, kDimsPerLane);
    lanes.push_back(fma_chain(own, own, 0.0f));
  }
  lanes.resize(kLanes, 0.0f);
  return butterfly_sum(lanes, offsets);
}

Head normalised(Head head, const Gamma& gamma, float eps) {
  const float rr =
      reciprocal_rms(sum_of_squares(head), static_cast<std::int64_t>(head.size()), eps);
  for (std::size_t d = 0; d < head.size(); ++d)
    head[d] = (head[d] * rr) * (float_from_bf16(gamma(d)) + 1.0f);
  return head;
}

Head rotated(const Head& n, const QkNormRopeInput& input, std::int64_t position) {
  Head out = n;
  const auto half = static_cast<std::size_t>(input.shape.rotary_dim / 2);
  for (std::size_t i = 0; i < half; ++i) {
    const float cos = float_from_bf16(input.cos_sin(position, i));
    const float sin = float_from_bf16(input.cos_sin(position, half + i));
    out[i] = std::fma(n[i], cos, -(n[half + i] * sin));
    out[half + i] = std::fma(n[half + i], cos, n[i] * sin);
  }
  return out;
}

/// One kind of head of one row: `count` heads from `start` on, through `store(head, dim, value)`.
template <class Store>
void heads_of_kind(const QkNormRopeInput& input, std::int64_t row, std::int64_t start,
                   std::int64_t count, const Gamma& gamma, float eps, Store store) {
  for (std::int64_t head = 0; head < count; ++head) {
    const Head e = load_head(input, row, start + head * input.shape.head_dim);
    const Head out = rotated(normalised(e, gamma, eps), input, input.position(row));
    for (std::size_t d = 0; d < out.size(); ++d) store(head, d, canonical(out[d]));
  }
}

void check_outputs(const QkNormRopeInput& input, const QkNormRopeOutput& output, std::int64_t n) {
  const HeadShape& shape = input.shape;
  require_dims("qk_norm_rope: output q", output.q, {n, shape.q_heads, shape.head_dim});
  require_dims("qk_norm_rope: output k", output.k, {n, shape.kv_heads, shape.head_dim});
  require_dims("qk_norm_rope: output index_q", output.index_q,
               {n, shape.index_q_heads, shape.head_dim});
  require_dims("qk_norm_rope: output index_k", output.index_k, {n, 1, shape.head_dim});
}

}  // namespace

void HeadShape::validate() const {
  require_between("q_heads", q_heads, 1, kMaxHeads);
  require_between("kv_heads", kv_heads, 1, kMaxHeads);
  require_between("index_q_heads", index_q_heads, 1, kMaxHeads);
  require_between("head_dim", head_dim, kDimsPerLane, kLanes * kDimsPerLane);
  require_multiple("head_dim", head_dim, kDimsPerLane);
  require_between("rotary_dim", rotary_dim, 0, head_dim);
  require_multiple("rotary_dim", rotary_dim, 2);
}

std::int64_t qk_norm_rope_rows(const QkNormRopeInput& input) {
  const HeadShape& shape = input.shape;
  shape.validate();
  const std::int64_t n = input.qkv.dim(0);
  const std::int64_t positions = input.cos_sin.dim(0);
  require_dims("qk_norm_rope: qkv", input.qkv, {n, shape.row_width()});
  require_dims("qk_norm_rope: position", input.position, {n});
  require_dims("qk_norm_rope: cos_sin", input.cos_sin, {positions, shape.rotary_dim});
  require_dims("qk_norm_rope: q_gamma", input.q_gamma, {shape.head_dim});
  require_dims("qk_norm_rope: k_gamma", input.k_gamma, {shape.head_dim});
  require_dims("qk_norm_rope: index_q_gamma", input.index_q_gamma, {shape.head_dim});
  require_dims("qk_norm_rope: index_k_gamma", input.index_k_gamma, {shape.head_dim});
  static_cast<void>(checked_eps("qk_norm_rope", input.eps));
  for (std::int64_t row = 0; row < n; ++row)
    if (input.position(row) < 0 || input.position(row) >= positions)
      refuse("qk_norm_rope: position[{}] is {}, must be 0 to {}, the table's end", row,
             input.position(row), positions - 1);
  return n;
}

void qk_norm_rope(const QkNormRopeInput& input, const QkNormRopeOutput& output) {
  const HeadShape& shape = input.shape;
  const std::int64_t n = qk_norm_rope_rows(input);
  check_outputs(input, output, n);
  const float eps = checked_eps("qk_norm_rope", input.eps);
  for (std::int64_t row = 0; row < n; ++row) {
    heads_of_kind(
        input, row, 0, shape.q_heads, input.q_gamma, eps,
        [&](auto head, auto d, float value) { output.q(row, head, d) = bf16_from_float(value); });
    heads_of_kind(input, row, shape.k_start(), shape.kv_heads, input.k_gamma, eps,
                  [&](auto head, auto d, float value) { output.k(row, head, d) = value; });
    heads_of_kind(input, row, shape.index_q_start(), shape.index_q_heads, input.index_q_gamma, eps,
                  [&](auto head, auto d, float value) {
                    output.index_q(row, head, d) = bf16_from_float(value);
                  });
    heads_of_kind(input, row, shape.index_k_start(), 1, input.index_k_gamma, eps,
                  [&](auto head, auto d, float value) { output.index_k(row, head, d) = value; });
  }
}

}  // namespace monoref
