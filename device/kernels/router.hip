// router: residual addition, norm, and the gate's logits, in two kernels.
//
// Source of the rule: mono-decode section 7 (router norm, gate logit) and section 10 (where sums
// start). Waves of the specification have 64 lanes, whatever the machine's have.
//
//   v      bf16(sum) + residual, in binary32; h_mid is bf16(v)
//   norm   logical thread t of 512 owns hidden / 512 consecutive elements of v and sums their
//          squares in an fma chain from 0; then the butterfly of its 64 lanes; then the 8 waves'
//          sums in order, from the first. xn is bf16((v * rstd) * (gamma + 1)).
//   logit  lane l of 64 takes the eight elements (i * 64 + l) * 8 .. of every i. Four accumulators,
//          one for each pair of the eight: fma of the low element, then of the high one. The lane's
//          sum is (a0 + a1) + (a2 + a3), and the logit the butterfly of the lanes' sums.
//
// Work of the norm. A block of 512 threads has a row. The row is loaded and stored in vectors of
// eight elements, 16 bytes of each operand, and is kept in shared memory as v in between, from
// which every thread reads the elements that it owns.
//
// Work of the gate. A group of 64 threads has an expert and four rows. Up to four such groups of a
// block have the same expert, so that its weights are read from memory once for 16 rows. A lane has
// the weights of several steps in flight at once.

#include <cstdint>

#include "device/kernels/arithmetic.hpp"
#include "device/kernels/lanes64.hpp"
#include "device/kernels/number_formats.hpp"
#include "device/kernels/registers.hpp"
#include "device/kernels/row_copy.hpp"
#include "device/kernels/vector_access.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {

constexpr std::int32_t kNormThreads = 512;
constexpr std::int32_t kNormWaves = kNormThreads / kLanes64;
constexpr std::int32_t kMaxHidden = 8192;
constexpr std::int32_t kVector = 8;

/// Value of the `norm_input` parameter: the norm continues with the stored h_mid.
constexpr std::int32_t kNormRounded = 1;

/// The inputs of the norm.
struct NormInputs {
  const std::uint16_t* sum;
  std::int64_t sum_row_stride;
  const std::uint16_t* residual;
  std::int64_t residual_row_stride;
  const std::uint16_t* gamma;
  std::int32_t hidden;
  float eps;
  bool rounded;
};

/// Adds the residual to a row: stores h_mid, and what the norm continues with to `v` [hidden], in
/// shared memory.
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE void add_residual(const NormInputs& in, std::int64_t row,
                                                          std::uint16_t* h_mid, float* v) {
  for (std::int32_t first = kVector * static_cast<std::int32_t>(threadIdx.x); first < in.hidden;
       first += kVector * kNormThreads) {
    float values[kVector], residual[kVector];
    load_eight({in.sum + row * in.sum_row_stride, 1}, first, values);
    load_eight({in.residual + row * in.residual_row_stride, 1}, first, residual);
    if (MONOREF_FAULT(router_h_mid_without_residual, "own", "h_mid is the sum alone"))
      store_eight_bf16(h_mid + first, values);
    for (int i = 0; i < kVector; ++i) {
      values[i] += residual[i];
      if (MONOREF_FAULT(router_residual_twice, "own", "the residual is added twice"))
        values[i] += residual[i];
    }
    if (!MONOREF_FAULT_AT(router_h_mid_without_residual)) store_eight_bf16(h_mid + first, values);
    if (in.rounded != MONOREF_FAULT(router_norm_source_swapped, "own",
                                    "the norm goes on with the other form of the sum"))
      for (float& value : values) value = rounded_to_bf16(value);
    for (int i = 0; i < kVector; ++i) v[first + i] = values[i];
  }
}

/// This thread's part of the sum of squares: `count` elements of v from `owned` on.
MONOREF_DEVICE float sum_of_squares(const float* owned, std::int32_t count) {
  float sum = 0.0F;
  for (std::int32_t i = 0; i < count; ++i) sum = simt::fma(owned[i], owned[i], sum);
  return sum;
}

/// Sum of squares of the row in v. Every thread gets it.
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE float row_sum(const float* v, std::int32_t hidden,
                                                      float* exchange, float* wave_sums) {
  const std::int32_t owned = hidden / kNormThreads;
  float sum[1] = {sum_of_squares(v + owned * static_cast<std::int32_t>(threadIdx.x), owned)};
  sums_of_64(exchange, sum);
  if (lane_of_64() == 0) wave_sums[wave_of_64()] = sum[0];
  __syncthreads();
  float total = wave_sums[0];
  for (int wave = 1; wave < kNormWaves; ++wave) total += wave_sums[wave];
  if (MONOREF_FAULT(router_waves_reversed, "own", "waves are added from the last one on")) {
    total = wave_sums[kNormWaves - 1];
    for (int wave = kNormWaves - 2; wave >= 0; --wave) total += wave_sums[wave];
  }
  return total;
}

/// Stores the norm of the row in v.
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE void store_norm(const NormInputs& in, const float* v,
                                                        float sum, std::uint16_t* xn) {
  const float mean = sum / static_cast<float>(in.hidden);
  const float rstd = MONOREF_FAULT(router_eps_outside_root, "own", "eps added to the root")
                         ? 1.0F / (simt::sqrt_rn(mean) + in.eps)
                         : rsq(mean + in.eps);
  for (std::int32_t first = kVector * static_cast<std::int32_t>(threadIdx.x); first < in.hidden;
       first += kVector * kNormThreads) {
    float gamma[kVector], values[kVector];
    load_eight({in.gamma, 1}, first, gamma);
    for (int i = 0; i < kVector; ++i) {
      const float weight =
          MONOREF_FAULT(router_gamma_without_one, "own", "weight gamma instead of gamma + 1")
              ? gamma[i]
              : gamma[i] + 1.0F;
      values[i] = (v[first + i] * rstd) * weight;
    }
    store_eight_bf16(xn + first, values);
  }
}

// -------------------------------------------------------------------------------------------------

constexpr int kGroupRows = 4;
constexpr int kMaxRowGroups = 4;
constexpr int kPairs = kVector / 2;
constexpr std::int32_t kStep = kLanes64 * kVector;  ///< elements that the lanes take at once
constexpr int kStepsAtOnce = 4;

/// Eight elements as they lie in memory.
template <class Element>
struct VectorOfEight {
  simt::Vec16 part[kVector * sizeof(Element) / 16];
};

/// Loads eight elements; `wide`: they begin on a multiple of 16 bytes.
template <bool wide, class Element>
MONOREF_DEVICE VectorOfEight<Element> load_vector(const Element* from) {
  if constexpr (wide) {
    VectorOfEight<Element> vector;
    MONOREF_UNROLL
    for (std::size_t i = 0; i < sizeof(vector) / 16; ++i)
      vector.part[i] = simt::load16(from + i * (16 / sizeof(Element)));
    return vector;
  } else {
    struct Elements {
      Element element[kVector];
    } elements;
    for (int i = 0; i < kVector; ++i) elements.element[i] = from[i];
    return simt::bit_cast<VectorOfEight<Element>>(elements);
  }
}

/// The eight numbers of a vector.
MONOREF_DEVICE void values_of(const VectorOfEight<std::uint16_t>& vector,
                              float (&values)[kVector]) {
  for (int i = 0; i < kPairs; ++i) split_bf16_pair(vector.part[0].word[i], values + 2 * i);
}
MONOREF_DEVICE void values_of(const VectorOfEight<float>& vector, float (&values)[kVector]) {
  for (int i = 0; i < kVector; ++i) {
    values[i] = simt::bit_cast<float>(vector.part[i / 4].word[i % 4]);
    if (MONOREF_FAULT(router_gate_weight_rounded, "own", "weights of binary32 are rounded to BF16"))
      values[i] = rounded_to_bf16(values[i]);
  }
}

/// The arguments of a launch of the gate.
template <class Weight>
struct Gate {
  const std::uint16_t* xn;
  std::int64_t xn_row_stride;
  const Weight* weights;
  std::int64_t weights_row_stride;
  float* logits;
  std::int64_t logits_row_stride;
  std::int64_t rows;
  std::int32_t experts;
  std::int32_t hidden;

  /// Whether all vectors of eight elements begin on multiples of 16 bytes.
  MONOREF_MEMBER bool is_wide() const {
    if (MONOREF_FAULT(
            router_wide_by_stride_only, "own",
            "where rows and weights begin is not looked at before they are loaded by 16 bytes"))
      return xn_row_stride % kVector == 0 && weights_row_stride * sizeof(Weight) % 16 == 0;
    return aligned16(xn) && aligned16(weights) && xn_row_stride % kVector == 0 &&
           weights_row_stride * sizeof(Weight) % 16 == 0;
  }
};

/// Where in its rows a lane's eight elements of step `step` begin.
MONOREF_DEVICE std::int32_t offset_of_vector(std::int32_t step, std::int32_t steps) {
  if (MONOREF_FAULT(router_lane_has_neighbours, "own",
                    "a lane owns other elements than the stated ones"))
    return (lane_of_64() * steps + step) * kVector;
  return step * kStep + lane_of_64() * kVector;
}

/// Continues the four fma chains of one row by eight elements.
MONOREF_DEVICE void add_vector(const float (&w)[kVector], const float (&x)[kVector],
                               float (&chains)[kPairs]) {
  MONOREF_UNROLL
  for (int pair = 0; pair < kPairs; ++pair) {
    const int low = 2 * pair + (MONOREF_FAULT(router_pair_high_first, "own",
                                              "the high element of a pair is added first")
                                    ? 1
                                    : 0);
    chains[pair] = simt::fma(w[low], x[low], chains[pair]);
    chains[pair] = simt::fma(w[low ^ 1], x[low ^ 1], chains[pair]);
    compute_here(chains[pair]);
  }
}

/// This lane's sums for one expert and `count` rows of xn. `row_of`: where each begins.
template <bool wide, int count, class Weight>
MONOREF_DEVICE void sum_lane(const Gate<Weight>& gate, const Weight* weights,
                             const std::uint16_t* const (&row_of)[count], float (&sums)[count]) {
  float chains[count][kPairs] = {};
  std::int32_t steps = gate.hidden / kStep;
  if (MONOREF_FAULT(router_last_step_dropped, "own",
                    "the last 512 elements are left out of the logits") &&
      steps > 1)
    --steps;
  MONOREF_KEEP_LOOP
  for (std::int32_t first = 0; first < steps; first += kStepsAtOnce) {
    VectorOfEight<Weight> vectors[kStepsAtOnce];
    MONOREF_UNROLL
    for (int i = 0; i < kStepsAtOnce; ++i) {
      const std::int32_t step = first + i < steps ? first + i : steps - 1;
      vectors[i] = load_vector<wide>(weights + offset_of_vector(step, steps));
    }
    MONOREF_UNROLL
    for (int i = 0; i < kStepsAtOnce; ++i) {
      if (first + i >= steps) continue;
      float w[kVector], x[kVector];
      values_of(vectors[i], w);
      MONOREF_UNROLL
      for (int row = 0; row < count; ++row) {
        values_of(load_vector<wide>(row_of[row] + offset_of_vector(first + i, steps)), x);
        add_vector(w, x, chains[row]);
      }
    }
  }
  MONOREF_UNROLL
  for (int row = 0; row < count; ++row) {
    const float (&a)[kPairs] = chains[row];
    sums[row] = (a[0] + a[1]) + (a[2] + a[3]);
    if (MONOREF_FAULT(router_chains_in_order, "own",
                      "a lane's four chains are added one after the other"))
      sums[row] = ((a[0] + a[1]) + a[2]) + a[3];
  }
}

/// The logits of one expert for `count` rows from `first` on, which belong to this thread's group
/// of 64. Rows that do not exist are computed as the last one and not stored.
template <bool wide, int count, class Weight>
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE void make_logits(const Gate<Weight>& gate,
                                                         std::int64_t expert, std::int64_t first,
                                                         float* exchange) {
  const std::uint16_t* row_of[count];
  MONOREF_UNROLL
  for (int i = 0; i < count; ++i) {
    std::int64_t row = first + i < gate.rows ? first + i : gate.rows - 1;
    if (MONOREF_FAULT(router_xn_of_first_row, "T11", "logits of every row from the first row"))
      row = first < gate.rows ? first : gate.rows - 1;
    row_of[i] = gate.xn + row * gate.xn_row_stride;
  }
  float sums[count];
  sum_lane<wide>(gate, gate.weights + expert * gate.weights_row_stride, row_of, sums);
  sums_of_64(exchange, sums);
  MONOREF_UNROLL
  for (int i = 0; i < count; ++i)
    if (lane_of_64() == i && first + i < gate.rows)
      gate.logits[(first + i) * gate.logits_row_stride + expert] = canonical(sums[i]);
}

/// Runs the smallest instantiation that holds a tile's rows.
template <bool wide, class Weight>
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE void make_tile(const Gate<Weight>& gate,
                                                       std::int64_t expert, std::int64_t tile_first,
                                                       float* exchange) {
  const std::int64_t first = tile_first + std::int64_t{wave_of_64()} * kGroupRows;
  const std::int64_t left = gate.rows - tile_first;
  if (left == 1)
    make_logits<wide, 1>(gate, expert, first, exchange);
  else if (left == 2)
    make_logits<wide, 2>(gate, expert, first, exchange);
  else
    make_logits<wide, kGroupRows>(gate, expert, first, exchange);
  __syncthreads();  // the sums of the next tile overwrite these
}

template <class Weight>
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE void make_all_logits(const Gate<Weight>& gate,
                                                             float* exchange) {
  if (gate.hidden < kStep || gate.hidden % kStep != 0) return;
  if (blockDim.x % kLanes64 != 0) return;
  const bool wide = gate.is_wide();
  const std::int64_t tile_rows = std::int64_t{blockDim.x} / kLanes64 * kGroupRows;
  for (std::int64_t expert = blockIdx.x; expert < gate.experts; expert += gridDim.x) {
    for (std::int64_t first = blockIdx.y * tile_rows; first < gate.rows;
         first += gridDim.y * tile_rows) {
      if (wide)
        make_tile<true>(gate, expert, first, exchange);
      else
        make_tile<false>(gate, expert, first, exchange);
    }
  }
}

}  // namespace

// Inputs   sum, residual bf16 [rows, hidden], rows *_row_stride elements apart
//          gamma bf16 [hidden], dense; the norm's weight is gamma + 1
// Outputs  h_mid bf16 [rows, hidden], rows h_mid_row_stride elements apart: bf16(sum + residual).
//          May be `residual` itself, in the same place.
//          xn bf16 [rows, hidden], rows xn_row_stride elements apart
// Sizes    hidden a multiple of 512, at most 8192
// Options  norm_input 0: the norm continues with the unrounded sum; 1: with h_mid
// Launch   any grid in x, which goes over rows; blocks of 512 threads in one dimension.
// Misuse   Other sizes and blocks write nothing.
// NaN      A NaN in a row makes all of its xn NaN.
MONOREF_KERNEL(512, monoref_router_norm)(const std::uint16_t* sum, std::int64_t sum_row_stride,
                                         const std::uint16_t* residual,
                                         std::int64_t residual_row_stride,
                                         const std::uint16_t* gamma, std::uint16_t* h_mid,
                                         std::int64_t h_mid_row_stride, std::uint16_t* xn,
                                         std::int64_t xn_row_stride, std::int64_t rows,
                                         std::int32_t hidden, float eps, std::int32_t norm_input) {
  MONOREF_SHARED(float, v, kMaxHidden);
  MONOREF_SHARED(float, exchange, kNormThreads);
  MONOREF_SHARED(float, wave_sums, kNormWaves);
  if (hidden < kNormThreads || hidden > kMaxHidden || hidden % kNormThreads != 0) return;
  if (blockDim.x != kNormThreads) return;
  const NormInputs in{sum,   sum_row_stride, residual, residual_row_stride,
                      gamma, hidden,         eps,      norm_input == kNormRounded};
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    add_residual(in, row, h_mid + row * h_mid_row_stride, v);
    __syncthreads();
    const float total = row_sum(v, hidden, exchange, wave_sums);
    store_norm(in, v, total, xn + row * xn_row_stride);
  }
}
MONOREF_REGISTER(monoref_router_norm);

// Inputs   xn bf16 [rows, hidden], rows xn_row_stride elements apart
//          gate bf16 [n_routed, hidden], rows gate_row_stride elements apart
// Outputs  logits f32 [rows, n_routed], rows logits_row_stride elements apart
// Sizes    hidden a multiple of 512
// Launch   any grid; x goes over experts, y over tiles of as many rows as the block takes: four for
//          each 64 threads. Blocks of 64, 128, 192 or 256 threads in one dimension: for up to 16
//          rows n_routed blocks of 64 * ceil(rows / 4) threads.
// Misuse   Other sizes and blocks write nothing.
MONOREF_KERNEL(256, monoref_router_gate)(const std::uint16_t* xn, std::int64_t xn_row_stride,
                                         const std::uint16_t* gate, std::int64_t gate_row_stride,
                                         float* logits, std::int64_t logits_row_stride,
                                         std::int64_t rows, std::int32_t n_routed,
                                         std::int32_t hidden) {
  MONOREF_SHARED(float, exchange, kGroupRows * kMaxRowGroups * kLanes64);
  make_all_logits(Gate<std::uint16_t>{xn, xn_row_stride, gate, gate_row_stride, logits,
                                      logits_row_stride, rows, n_routed, hidden},
                  exchange);
}
MONOREF_REGISTER(monoref_router_gate);

// The same with gate weights of f32 [n_routed, hidden].
MONOREF_KERNEL(256, monoref_router_gate_f32)(const std::uint16_t* xn, std::int64_t xn_row_stride,
                                             const float* gate, std::int64_t gate_row_stride,
                                             float* logits, std::int64_t logits_row_stride,
                                             std::int64_t rows, std::int32_t n_routed,
                                             std::int32_t hidden) {
  MONOREF_SHARED(float, exchange, kGroupRows * kMaxRowGroups * kLanes64);
  make_all_logits(Gate<float>{xn, xn_row_stride, gate, gate_row_stride, logits, logits_row_stride,
                              rows, n_routed, hidden},
                  exchange);
}
MONOREF_REGISTER(monoref_router_gate_f32);

}  // namespace monoref::kernels
