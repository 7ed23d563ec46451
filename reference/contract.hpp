// The choices that decide bits. Every verdict and every case file states the contract it speaks of.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace monoref {

/// How K and V share a block (specification sections 1 and 8).
enum class KvLayout : std::uint8_t {
  kInterleaved,  ///< one 128-token block holds its K pages, then its V pages: 16 page ids a block
  kDense,        ///< K and V are planes of their own: 8 page ids a block
};

/// What a cache write does with a slot at or beyond the cache's end (bug case P14).
enum class OutOfRangeSlot : std::uint8_t {
  kRefuse,  ///< the host side refuses the whole call
  kDrop,    ///< what a kernel does, which cannot refuse: the row is not written
};

/// One value per choice. Stages read only the fields that concern them.
struct Contract {
  KvLayout kv_layout = KvLayout::kInterleaved;
  OutOfRangeSlot out_of_range_slot = OutOfRangeSlot::kRefuse;

  bool operator==(const Contract&) const = default;

  /// Reads `PRESET[,field=value...]`. Refuses unknown presets, fields and values, naming the legal ones.
  static Contract parse(std::string_view text);
  /// The shortest text that `parse` reads back: the preset, then the fields that differ from it.
  std::string text() const;
};

/// One row of the table of choices, for `monoref list` and `--help`.
struct ContractField {
  std::string_view name;
  std::vector<std::string_view> values;  ///< indexed by the enum's number
  std::string_view meaning;
};
const std::vector<ContractField>& contract_fields();

/// The named presets, the default first.
std::vector<std::string_view> contract_presets();

}  // namespace monoref
