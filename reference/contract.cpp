#include "reference/contract.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "reference/error.hpp"

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
                                        "decode lengths below 0 or above the model's limit"),
  };
  return all;
}

struct Preset {
  std::string_view name;
  Contract contract;
};

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all{{"mono", Contract{}}};
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
  if (equals == std::string_view::npos) refuse("contract: '{}' is not field=value", assignment);
  const std::string_view name = assignment.substr(0, equals);
  const std::string_view value = assignment.substr(equals + 1);
  for (const FieldAccess& access : accesses()) {
    if (access.field.name != name) continue;
    const auto& values = access.field.values;
    const auto found = std::find(values.begin(), values.end(), value);
    if (found == values.end())
      refuse("contract: {} is '{}', must be one of {}", name, value,
             joined(values, [](std::string_view v) { return v; }));
    access.set(contract, static_cast<std::uint8_t>(found - values.begin()));
    return;
  }
  refuse("contract: no field '{}'; the fields are {}", name,
         joined(accesses(), [](const FieldAccess& a) { return a.field.name; }));
}

}  // namespace

Contract Contract::parse(std::string_view text) {
  const std::string_view name = text.substr(0, text.find(','));
  const auto preset = std::find_if(presets().begin(), presets().end(),
                                   [&](const Preset& p) { return p.name == name; });
  if (preset == presets().end())
    refuse("contract: no preset '{}'; the presets are {}", name,
           joined(presets(), [](const Preset& p) { return p.name; }));
  Contract contract = preset->contract;
  while (text.find(',') != std::string_view::npos) {
    text.remove_prefix(text.find(',') + 1);
    apply(contract, text.substr(0, text.find(',')));
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
