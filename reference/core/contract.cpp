#include "reference/core/contract.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "reference/core/error.hpp"
#include "reference/core/excerpt.hpp"

namespace monoref {
namespace {

/// A field of the struct as a number, so that parsing and printing need no per-field code.
struct FieldAccess {
  ContractField field;
  std::uint8_t (*get)(const Contract&);
  void (*set)(Contract&, std::uint8_t);
};

template <auto Member>
FieldAccess access(std::string_view name, std::vector<std::string_view> values,
                   std::string_view meaning) {
  using Enum = std::remove_cvref_t<decltype(std::declval<Contract>().*Member)>;
  return {
      {name, std::move(values), meaning},
      [](const Contract& contract) { return static_cast<std::uint8_t>(contract.*Member); },
      [](Contract& contract, std::uint8_t value) { contract.*Member = static_cast<Enum>(value); }};
}

const std::vector<FieldAccess>& accesses() {
  static const std::vector<FieldAccess> all{
      access<&Contract::kv_layout>("kv_layout", {"interleaved", "dense"},
                                   "K and V pages share a block, or are planes of their own"),
      access<&Contract::out_of_range_slot>("out_of_range_slot", {"refuse", "drop"},
                                           "a slot at or beyond the cache's end"),
      access<&Contract::fp8_encoding>("fp8_encoding", {"e4m3fn", "e4m3fnuz"},
                                      "which FP8 the codes are"),
      access<&Contract::fp8_overflow>("fp8_overflow", {"nan", "saturate"},
                                      "conversion of values past the largest FP8 number"),
      access<&Contract::fp8_max>("fp8_max", {"448", "240", "224"},
                                 "what the largest element of a quantised row is scaled to"),
      access<&Contract::norm_source>("norm_source", {"unrounded", "rounded"},
                                     "the sum that the input norm goes on with"),
      access<&Contract::key_source>("key_source", {"bf16", "unrounded"},
                                    "the rotated key that is converted to FP8"),
      access<&Contract::kv_scale>("kv_scale", {"divide", "reciprocal"},
                                  "how a cache scale is applied"),
      access<&Contract::decode_lengths>("decode_lengths", {"clamped", "as-seed"},
                                        "decode metadata: ours, or the original's numbers"),
      access<&Contract::topk_ties>("topk_ties", {"higher_id", "lower_id"},
                                   "which of two blocks with equal keys ranks first"),
      access<&Contract::nan_score>("nan_score", {"lowest", "minus_inf", "minus_1e30"},
                                   "what a NaN score ranks as"),
      access<&Contract::zero_score>("zero_score", {"equal", "ordered"},
                                    "how scores of -0 and +0 compare"),
      access<&Contract::index_scores>("index_scores", {"selectable", "every_block"},
                                      "blocks that the indexer scores"),
      access<&Contract::empty_row>("empty_row", {"context_1", "context_0"},
                                   "keys that a row without tokens attends to"),
      access<&Contract::attention_plan>("attention_plan", {"partitions", "splits", "chunks"},
                                        "how keys are dealt to partial results"),
      access<&Contract::attention_operands>("attention_operands", {"fp8", "bf16"},
                                            "form of q, k, v and p in the products"),
      access<&Contract::score_units>("score_units", {"natural", "base_2"},
                                     "the base that attention scores are exponents of"),
      access<&Contract::masked_score>("masked_score", {"finite", "infinite"},
                                      "score of a key past the context"),
      access<&Contract::p_scale>("p_scale", {"maximum", "one"},
                                 "factor of probabilities before they are rounded"),
      access<&Contract::v_scale>("v_scale", {"at_end", "per_tile"}, "where the scale of V enters"),
      access<&Contract::v_past_context>("v_past_context", {"zeroed", "kept"},
                                        "V in keys past the context"),
      access<&Contract::merge_weights>("merge_weights", {"max_and_sum", "lse_base_2", "lse_base_e"},
                                       "what a partial result says about its weight"),
      access<&Contract::empty_partial>("empty_partial", {"computed", "skipped"},
                                       "a partial result that saw no key"),
      access<&Contract::merge_sum>("merge_sum", {"separate", "fused"},
                                   "how weighted partial results are added"),
      access<&Contract::all_reduce_order>("all_reduce_order", {"rank_order", "rotated"},
                                          "the order in which ranks' partial sums are added"),
      access<&Contract::gate_weights>("gate_weights", {"bf16", "f32"},
                                      "format of the router's weights and of its logits"),
      access<&Contract::routing_key>("routing_key", {"packed", "plain_lower_id", "plain_higher_id"},
                                     "what experts are ranked by, and which of equals is first"),
      access<&Contract::nan_key>("nan_key", {"last", "first"}, "where a NaN routing key ranks"),
      access<&Contract::routed_scaling>("routed_scaling", {"weights", "output"},
                                        "where the factor of the routed experts enters"),
      access<&Contract::swiglu_limit_zero>("swiglu_limit_zero", {"refused", "no_clamp"},
                                           "what a SwiGLU limit of 0 means"),
      access<&Contract::mx_rule>(
          "mx_rule", {"a", "b", "c", "d", "e", "mono", "round_down", "even", "ceil", "round_up"},
          "how an MX block's scale follows from its largest magnitude"),
      access<&Contract::e8m0_zero>("e8m0_zero", {"smallest", "zero"},
                                   "what the scale byte 0 stands for"),
  };
  return all;
}

struct Preset {
  std::string_view name;
  Contract contract;
};

/// AITER's selection and Gluon attention (upstream-semantics sections 4 and 6.1). Conversions to
/// FP8 saturate, as in Triton builds since mid-2025.
Contract aiter_gluon() {
  Contract contract;
  contract.fp8_overflow = Fp8Overflow::kSaturate;
  contract.nan_score = NanScore::kMinusInf;
  contract.zero_score = ZeroScore::kOrdered;
  contract.index_scores = IndexScores::kEveryBlock;
  contract.empty_row = EmptyRow::kContext0;
  contract.attention_plan = AttentionPlan::kSplits;
  contract.p_scale = PScale::kOne;
  contract.v_scale = VScale::kPerTile;
  contract.v_past_context = VPastContext::kKept;
  contract.empty_partial = EmptyPartial::kSkipped;
  contract.merge_sum = MergeSum::kFused;
  return contract;
}

/// vLLM's Triton indexer and attention (upstream-semantics sections 4 and 6.2).
Contract vllm_triton() {
  Contract contract;
  contract.topk_ties = TopkTies::kLowerId;
  contract.nan_score = NanScore::kMinus1e30;
  contract.index_scores = IndexScores::kEveryBlock;
  contract.empty_row = EmptyRow::kContext0;
  contract.attention_plan = AttentionPlan::kChunks;
  contract.attention_operands = AttentionOperands::kBf16;
  contract.score_units = ScoreUnits::kBase2;
  contract.masked_score = MaskedScore::kInfinite;
  contract.p_scale = PScale::kOne;
  contract.v_scale = VScale::kPerTile;
  contract.merge_weights = MergeWeights::kLseBase2;
  contract.empty_partial = EmptyPartial::kSkipped;
  return contract;
}

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all{
      {"mono", Contract{}}, {"aiter-gluon", aiter_gluon()}, {"vllm-triton", vllm_triton()}};
  return all;
}

template <class Items, class Name>
std::string joined(const Items& items, Name name) {
  std::string text;
  for (const auto& item : items) {
    if (!text.empty()) text += ", ";
    text += name(item);
  }
  return text;
}

void apply(Contract& contract, std::string_view assignment) {
  const std::size_t equals = assignment.find('=');
  if (equals == std::string_view::npos)
    refuse("contract: '{}' is not field=value", excerpt(assignment));
  const std::string_view name = assignment.substr(0, equals);
  const std::string_view value = assignment.substr(equals + 1);
  for (const FieldAccess& access : accesses()) {
    if (access.field.name != name) continue;
    const auto& values = access.field.values;
    const auto found = std::find(values.begin(), values.end(), value);
    if (found == values.end())
      refuse("contract: {} is '{}', must be one of {}", name, excerpt(value),
             joined(values, [](std::string_view v) { return v; }));
    access.set(contract, static_cast<std::uint8_t>(found - values.begin()));
    return;
  }
  refuse("contract: field is '{}', must be one of {}", excerpt(name),
         joined(accesses(), [](const FieldAccess& a) { return a.field.name; }));
}

}  // namespace

Contract Contract::parse(std::string_view text) {
  const std::string_view name = text.substr(0, text.find(','));
  const auto preset = std::find_if(presets().begin(), presets().end(),
                                   [&](const Preset& p) { return p.name == name; });
  if (preset == presets().end())
    refuse("contract: preset is '{}', must be one of {}", excerpt(name),
           joined(presets(), [](const Preset& p) { return p.name; }));
  Contract contract = preset->contract;
  std::vector<std::string_view> given;
  while (text.find(',') != std::string_view::npos) {
    text.remove_prefix(text.find(',') + 1);
    const std::string_view assignment = text.substr(0, text.find(','));
    const std::string_view field = assignment.substr(0, assignment.find('='));
    if (std::find(given.begin(), given.end(), field) != given.end())
      refuse("contract: '{}' is given twice", excerpt(field));
    given.push_back(field);
    apply(contract, assignment);
  }
  return contract;
}

std::string Contract::text() const {
  std::string best;
  for (const Preset& preset : presets()) {
    std::string candidate(preset.name);
    for (const FieldAccess& access : accesses()) {
      const std::uint8_t value = access.get(*this);
      if (value != access.get(preset.contract))
        candidate += fmt::format(",{}={}", access.field.name, access.field.values[value]);
    }
    if (best.empty() || candidate.size() < best.size()) best = candidate;
  }
  return best;
}

const std::vector<ContractField>& contract_fields() {
  static const std::vector<ContractField> fields = [] {
    std::vector<ContractField> list;
    for (const FieldAccess& access : accesses()) list.push_back(access.field);
    return list;
  }();
  return fields;
}

std::vector<std::string_view> contract_presets() {
  std::vector<std::string_view> names;
  for (const Preset& preset : presets()) names.push_back(preset.name);
  return names;
}

}  // namespace monoref
