// What a stage can take from a case that somebody else made: cases also come from files.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "fuzz/stage.hpp"
#include "reference/core/limits.hpp"
#include "reference/stages/kv_page_address.hpp"

namespace monoref {

/// Whether a name is the one of a list, in which '#' stands for a number.
bool fits(std::string_view listed, std::string_view name);

/// Refuses a case that is not what the stage's lists say (see InputSpec): inputs and scalars that
/// are missing, twice there or unknown; of another type, rank or kind; elements that lie otherwise;
/// storage with holes, or more or less of it than dims and strides need; extents and scalars out of
/// their range. The message names stage, argument, value and limit.
void check_inputs(const Stage& stage, const Case& item);

/// Refuses outputs of more than `limits::kOutputBytes`, those not counted that start as an input.
void check_outputs(std::string_view stage, std::span<const OutputSpec> specs);

/// The stage with `check_inputs` before its `outputs` and `check_outputs` behind it; without the
/// first if it lists no inputs. Every refusal of outputs and reference names it.
Stage with_checked_inputs(Stage stage);

/// Types of an input that is E4M3FN or E4M3FNUZ by the contract.
inline std::vector<DType> fp8_types() {
  return {DType::kFloat8E4M3FN, DType::kFloat8E4M3FNUZ};
}
/// Refuses inputs that are not of the contract's FP8 encoding.
void require_contract_fp8(const Case& item, std::initializer_list<const char*> inputs);

/// Refuses a K/V cache that the kernels' page-16 layout is not: blocks of 128 keys in pages of 16.
void require_page16_caches(std::string_view stage, const KvPageShape& shape);

/// An integer parameter of a case. Refuses one outside `low` to `high`.
std::int64_t ranged_parameter(const Case& item, const std::string& key, std::int64_t low,
                              std::int64_t high);
/// An integer parameter of a case that a kernel takes in 32 bits. Refuses others.
std::int32_t int32_parameter(const Case& item, const std::string& key);
/// A parameter that is 0 or 1. Refuses others.
bool flag_parameter(const Case& item, const std::string& key);
/// Elements between the rows of an output, 0 if the case does not say. Refuses negative gaps and
/// those beyond limits::kRowGap.
std::int64_t row_gap(const Case& item, const std::string& key);

}  // namespace monoref
