// What a fuzzer varies: named integer dimensions, a choice of them, and its one-line form.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reference/core/contract.hpp"

namespace monoref {

/// One dimension of a stage's generator. Its legal values, which are drawn, shrunk through and
/// named in lines alike, are those of `has`.
struct Dimension {
  std::string_view name;
  std::int64_t simplest = 0;  ///< what shrinking aims at and what a line may leave out
  std::int64_t low = 0;       ///< smallest value of the range that is drawn from
  std::int64_t high = 0;      ///< largest of it; keep it small, cases per second depend on it
  /// Edge values, taken two times out of five; they may lie beyond `high`.
  std::vector<std::int64_t> edges;
  std::vector<std::string_view> words;  ///< if any: values are indices into this list
  std::string_view meaning;
  std::int64_t most =
      0;  ///< largest value that a line may name, if above `high`: sizes too slow to draw

  /// A dimension whose values have names; the first is the simplest.
  static Dimension choice(std::string_view name, std::vector<std::string_view> words,
                          std::string_view meaning);

  /// Whether a case may have this value: `low` to the larger of `high` and `most`, or an edge.
  bool has(std::int64_t value) const;
  /// Legal values that are nearer to the simplest than this one, the nearest first: few enough to
  /// try all, and so chosen that trying again from one that serves finds the smallest that does.
  std::vector<std::int64_t> simpler_than(std::int64_t value) const;
};

/// One value for each dimension of a stage, in the stage's order.
class Params {
 public:
  explicit Params(const std::vector<Dimension>& dimensions);

  std::int64_t operator[](std::string_view name) const;
  /// The word behind a choice.
  std::string_view word(std::string_view name) const;
  void set(std::string_view name, std::int64_t value);

  const std::vector<Dimension>& dimensions() const { return *dimensions_; }
  const std::vector<std::int64_t>& values() const { return values_; }
  std::vector<std::int64_t>& values() { return values_; }
  bool operator==(const Params& other) const { return values_ == other.values_; }

 private:
  std::size_t index(std::string_view name) const;
  const std::vector<Dimension>* dimensions_;
  std::vector<std::int64_t> values_;
};

/// Names the case that ran before through the same buffers: case `index` of campaign `seed`.
struct Companion {
  std::uint64_t seed = 0;
  std::uint64_t index = 0;
};

/// What a repro line says.
struct CaseLine {
  std::string stage;
  Contract contract;
  std::uint64_t seed = 0;
  std::uint32_t generator_version = 0;  ///< 0: the line does not say, today's is meant
  std::vector<std::pair<std::string, std::string>> settings;  ///< dimension name, value as written
  std::optional<Companion> earlier;
};

/// Reads `stage=...;contract=...;seed=...;gen=...;q_len=3;...;earlier=SEED:INDEX`. Refuses what it
/// does not understand.
CaseLine parse_line(std::string_view line);

/// The line that `parse_line` and `apply_settings` read back to the same case.
std::string format_line(std::string_view stage, const Contract& contract, std::uint64_t seed,
                        std::uint32_t generator_version, const Params& params);

/// Sets the named dimensions; refuses an unknown name and a value outside the dimension.
void apply_settings(Params& params, const CaseLine& line);

}  // namespace monoref
