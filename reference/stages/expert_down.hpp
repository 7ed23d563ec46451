// Stage expert_down: the second half of the experts, and their weighted sum.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "reference/core/contract.hpp"
#include "reference/core/tensor.hpp"
#include "reference/fast/isa.hpp"
#include "reference/rules/expert_weights.hpp"

namespace monoref {

/// Waves that share the units of a sum.
inline constexpr std::int64_t kDownWaves = 4;

struct ExpertDownInput {
  View<const std::uint8_t, 3> mid8;       ///< [rows, slots, inter] E4M3FN codes, any strides
  View<const std::uint8_t, 3> mid_scale;  ///< [rows, slots, inter / 32] E8M0, any strides
  View<const std::int32_t, 2> topk_ids;  ///< [rows, slots]; the shared expert in the last slot only
  View<const float, 2> topk_weights;     ///< [rows, slots]
  ExpertWeights w2;                      ///< [hidden, inter] an expert
  std::int64_t wide_from = 5;            ///< so many rows or more take the wide form
  double scaling = 1.0;                  ///< read under routed_scaling=output only
  Contract contract{};
};

struct ExpertDownOutput {
  View<std::uint16_t, 2> partial;  ///< [rows, hidden] BF16, this rank's part
};

/// The dims [rows, hidden] of the output, after every check of the input. Refuses: inter that is
/// not a multiple of 128; scales, ids and route weights of other dims; the shared expert in another
/// slot than the last; wide_from below 1; a scaling that is NaN; and what check_expert_weights and
/// check_expert_ids refuse.
std::array<std::int64_t, 2> expert_down_shape(const ExpertDownInput& input);

/// One unit of a row's sum: the 128-long dot of a slot's mid with a step of its expert's weights.
struct DownTerm {
  static constexpr std::int64_t kNoSlot = -1;

  std::int32_t expert;
  std::int64_t slot;  ///< of the row; kNoSlot: not routed there, 128 codes 0 under scale bytes 0
  std::int64_t step;  ///< of inter, in 128s
  float weight;
  std::size_t accumulator;  ///< 0 to 3: waves of routed units; 4 to 7: of the shared expert's
};

/// A row's units in the order of their addition, which the form decides (mono-decode sections 7 and
/// 10). With S = inter / 128:
///
/// Narrow, fewer rows than wide_from. Routed unit j = S * slot + step goes to wave j mod 4, a unit
/// of the shared expert to wave step mod 4 of accumulators of its own; every wave gets ceil(units /
/// 4) of each, where the last unit stands again, at weight 0, for those that do not exist.
///
/// Wide. The experts of all rows in ascending order, the shared one last; with u an expert's place
/// there, unit j = S * u + step goes to wave j mod 4. One accumulator a wave; under
/// routed_scaling=output the shared expert has accumulators of its own. A row takes part in every
/// unit: where it is not routed, with zeros at weight 0.
///
/// A slot whose id names no expert (out_of_range_slot=drop) has no units.
std::vector<DownTerm> expert_down_terms(const ExpertDownInput& input, std::int64_t row);

/// The sum over the 8 accumulators: in order from 0; under routed_scaling=output
/// (sum of the first four * scaling) + sum of the last four, each from 0 (bug cases M11, M12).
float expert_down_total(const ExpertDownInput& input, std::span<const float, 8> accumulators);

/// Per row and row of the weights, in binary32:
///
///   dot     = an fma chain from 0 over the 128 k of a unit, ascending, both operands scaled
///   acc[a]  = acc[a] + (dot * weight), unit by unit from 0
///   partial = bf16(expert_down_total(acc))
///
/// The two forms differ in bits, and in the wide one a row's bits depend on the experts of the
/// others: a NaN among the weights of any expert of the step reaches every row.
///
/// Refuses what the shape function refuses and an output of other dims, before it writes anything.
void expert_down(const ExpertDownInput& input, const ExpertDownOutput& output);

/// Bit for bit the same: rows grouped by expert, vectorised across weight rows and tokens, on all
/// cores. Each chain stays sequential.
void expert_down_fast(const ExpertDownInput& input, const ExpertDownOutput& output,
                      Isa isa = best_isa());

}  // namespace monoref
