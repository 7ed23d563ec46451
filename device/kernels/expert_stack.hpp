// Where the experts' weights lie: a stack of matrices in the layouts of shuffle_weight(16, 16) and
// shuffle_scale, with the shared expert in a matrix of its own or as the stack's last (mono-decode
// sections 7 and 9, upstream-semantics section 7.6).
#pragma once

#include <cstdint>

#include "device/kernels/mx_words.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {  // each variant of a kernel has its own

constexpr int kStep = 128;       ///< k of a matrix-core step, a multiple of which all widths are
constexpr int kTileRows = 16;    ///< rows whose codes of 16 bytes follow each other
constexpr int kTileTokens = 16;  ///< that a block multiplies with the weights it has read

/// Values of a kernel's `weights` parameter.
constexpr std::int32_t kWeightsMxfp8 = 0;
constexpr std::int32_t kWeightsMxfp4 = 1;

/// One expert's matrix [rows, k].
struct ExpertMatrix {
  const std::uint8_t* codes;   ///< null: there is no such expert
  const std::uint8_t* scales;  ///< of the whole stack that it belongs to
  std::int64_t first_row;      ///< its first row among those of the stack
  bool fp4;
};

/// The experts of a launch.
struct ExpertStack {
  const std::uint8_t* codes;
  const std::uint8_t* scales;
  const std::uint8_t* shared_codes;  ///< null: the shared expert is in the stack, or there is none
  const std::uint8_t* shared_scales;
  std::int32_t experts;   ///< of the stack
  std::int32_t n_routed;  ///< the shared expert's id
  std::int32_t rows;      ///< of one expert
  std::int32_t k;
  std::int32_t weights;
  std::int32_t e8m0_zero;

  MONOREF_MEMBER bool has_shared() const { return shared_codes != nullptr || experts > n_routed; }

  /// True if an id names an expert; any id may be asked for.
  MONOREF_MEMBER bool names_expert(std::int32_t id) const {
    return id >= 0 && (id < n_routed || (id == n_routed && has_shared()));
  }

  /// Columns of the scales, padding included.
  MONOREF_MEMBER std::int32_t scale_columns() const {
    const std::int32_t blocks = k / kMxBlock;
    if (MONOREF_FAULT(mx_scale_padding_forgotten)) return blocks;
    return (blocks + 7) / 8 * 8;
  }

  /// The matrix of an id that names an expert.
  MONOREF_MEMBER ExpertMatrix matrix(std::int32_t id) const {
    if (id == n_routed && shared_codes != nullptr) return {shared_codes, shared_scales, 0, false};
    const bool fp4 = weights == kWeightsMxfp4;
    const std::int64_t bytes = std::int64_t{rows} * k / (fp4 ? 2 : 1);
    return {codes + id * bytes, scales, std::int64_t{id} * rows, fp4};
  }

  /// True for sizes and options that the kernels serve.
  MONOREF_MEMBER bool is_valid() const {
    return k >= kStep && k % kStep == 0 && rows >= 1 && rows % 32 == 0 && n_routed >= 1 &&
           (experts == n_routed || (experts == n_routed + 1 && shared_codes == nullptr)) &&
           (weights == kWeightsMxfp8 || weights == kWeightsMxfp4);
  }
};

/// A thread's codes of `k` neighbouring columns of one row, with their scales.
template <bool fp4, int k>
struct RowCodes {
  static constexpr int kRunCodes = MxRun<fp4>::kCodes;
  static constexpr int kRuns = k / kRunCodes;
  static constexpr int kBlocks = k / kMxBlock;

  simt::Vec16 run[kRuns];
  std::uint32_t scale[kBlocks];

  /// The columns from `first` on, a multiple of k, of row `row` of `matrix`.
  MONOREF_MEMBER void load(const ExpertStack& stack, const ExpertMatrix& matrix, std::int32_t row,
                           std::int32_t first) {
    const std::int32_t row_bytes = fp4 ? stack.k / 2 : stack.k;
    const std::uint8_t* from = matrix.codes + std::int64_t{row / kTileRows} * kTileRows * row_bytes;
    from += std::int64_t{first / kRunCodes} * 16 * kTileRows + row % kTileRows * 16;
    MONOREF_UNROLL
    for (int i = 0; i < kRuns; ++i) run[i] = simt::load16(from + i * 16 * kTileRows);
    MONOREF_UNROLL
    for (int i = 0; i < kBlocks; ++i) {
      const std::int32_t block = first / kMxBlock + i;
      scale[i] =
          matrix.scales[shuffled_scale_at(matrix.first_row + row, block, stack.scale_columns())];
    }
  }

  MONOREF_MEMBER MxRun<fp4> operands(int i, std::int32_t e8m0_zero) const {
    return MxRun<fp4>(run[i], scale[i * kRunCodes / kMxBlock], e8m0_zero);
  }
};

/// Continues the chains of one row with `tokens` tokens by the codes of one run; the tokens'
/// operands begin at `x` in shared memory, `token_stride` apart.
template <bool fp4, int tokens>
MONOREF_DEVICE void add_run(const MxRun<fp4>& run, const float* x, int token_stride,
                            float (&sums)[tokens]) {
  constexpr int kWordCodes = MxRun<fp4>::kWordCodes;
  MONOREF_UNROLL
  for (int i = 0; i < 4; ++i) {
    float w[kWordCodes];
    run.operands(i, w);
    MONOREF_UNROLL
    for (int token = 0; token < tokens; ++token) {
      MONOREF_UNROLL
      for (int j = 0; j < kWordCodes; j += 4) {
        const Four values = load_staged(x + token * token_stride + i * kWordCodes + j);
        for (int n = 0; n < 4; ++n) sums[token] = simt::fma(values.value[n], w[j + n], sums[token]);
      }
      compute_here(sums[token]);
    }
  }
}

}  // namespace
}  // namespace monoref::kernels
