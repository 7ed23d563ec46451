// The experts' weights as they lie in memory, and who is routed to them: what expert_up_gate and
// expert_down have in common.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "reference/core/contract.hpp"
#include "reference/core/tensor.hpp"
#include "reference/formats/mx_block.hpp"

namespace monoref {

/// k of one matrix-core step.
inline constexpr std::int64_t kExpertStep = 128;
/// Most routed experts of a stack, and slots of a row, the shared expert's included.
inline constexpr std::int64_t kExpertMaxRouted = 1024;
inline constexpr std::int64_t kExpertMaxSlots = 16;

/// MX weights of a stack of experts, [rows, k] each, with one E8M0 scale for 32 neighbouring k.
/// Codes lie in shuffle_weight(16,16) order expert by expert, scales in shuffle_scale order over
/// the rows of all experts (mono-decode sections 7 and 9). Everything is dense uint8; storage may
/// be missing where no row is routed.
///
/// Ids below n_routed are routed experts. Id n_routed is the shared one: the matrix of its own if
/// there is one (separate, always MXFP8), else the last of the stack if that holds n_routed + 1
/// (fused).
struct ExpertWeights {
  MxElement element = MxElement::kFp8;
  std::int64_t n_routed = 0;
  const Tensor& weight;  ///< [experts, rows, bytes of a row: k (MXFP8) or k / 2 (MXFP4)]
  const Tensor& scale;   ///< [experts * rows, k / 32 rounded up to a multiple of 8]
  const Tensor* shared_weight = nullptr;  ///< [rows, k], absent: null
  const Tensor* shared_scale = nullptr;   ///< [rows, as above]

  /// Whether id n_routed names an expert.
  bool has_shared() const { return shared_weight != nullptr || weight.dim(0) == n_routed + 1; }
  bool is_expert(std::int32_t id) const {
    return id >= 0 && id < n_routed + (has_shared() ? 1 : 0);
  }
};

/// Refuses weights that are not matrices of `k` columns as described above: another rank, type or
/// dims; strides that are not dense; n_routed outside 1 to 1024; a number of experts that is
/// neither n_routed nor, without a separate shared expert, n_routed + 1; rows that are not a
/// multiple of 32 (groups of the scale layout), and only one of the two shared tensors. `stage` and
/// `name` ("w13") name the argument.
void check_expert_weights(std::string_view stage, std::string_view name,
                          const ExpertWeights& weights, std::int64_t k);

/// Refuses ids [rows, slots] that are not served: slots outside 1 to 16; an id outside the experts,
/// unless the contract's out_of_range_slot is drop; the same expert twice in a row; an expert whose
/// weights or scales are not stored.
void check_expert_ids(std::string_view stage, const ExpertWeights& weights,
                      View<const std::int32_t, 2> topk_ids, const Contract& contract);

/// One expert's weights.
struct ExpertMatrix {
  MxElement element;
  std::int64_t k;                ///< columns
  std::int64_t scale_columns;    ///< bytes of a row of scales, padding included
  std::int64_t first_scale_row;  ///< of this expert in `scales`
  const std::uint8_t* codes;     ///< of this expert
  const std::uint8_t* scales;    ///< of the whole stack
};

/// The matrix that a valid id names.
ExpertMatrix expert_matrix(const ExpertWeights& weights, std::int32_t id);

/// Elements first_k .. first_k + values.size() - 1 of a row of the plain matrix, as numbers: code
/// times scale, exact in binary32 except that past its range it is Inf. A NaN code or scale byte
/// 255 makes NaN; byte 0 is what `zero` says (bug cases X06, X07).
void read_weights(const ExpertMatrix& matrix, std::int64_t row, std::int64_t first_k, E8M0Zero zero,
                  std::span<float> values);

/// An MXFP8 activation as a number, by the same rule.
float mx_activation(std::uint8_t code, std::uint8_t scale, E8M0Zero zero);

/// What one expert computes: the (row, slot) pairs that name it, rows ascending.
struct RoutedExpert {
  struct Pair {
    std::int64_t row;
    std::int64_t slot;
  };
  std::int32_t id;
  std::vector<Pair> pairs;
};

/// The distinct experts of a step in ascending id order, so that the shared one comes last. Ids
/// that name no expert are left out.
std::vector<RoutedExpert> routed_experts(const ExpertWeights& weights,
                                         View<const std::int32_t, 2> topk_ids);

}  // namespace monoref
