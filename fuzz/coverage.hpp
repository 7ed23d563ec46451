// What a campaign has covered: how often each value of each dimension was drawn.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "fuzz/stage.hpp"

namespace monoref {

class Coverage {
 public:
  explicit Coverage(const Stage& stage) : stage_(&stage), seen_(stage.dimensions.size()) {}

  void add(const Params& params);
  void add(const Coverage& other);

  /// One line a dimension: words with their counts, or the number of values and their range; edge
  /// values and words that were never drawn are named.
  std::vector<std::string> lines() const;

  struct DimensionCounts {
    const Dimension* dimension;
    std::map<std::int64_t, std::uint64_t> counts;
  };
  std::vector<DimensionCounts> counts() const;

 private:
  const Stage* stage_;
  std::vector<std::map<std::int64_t, std::uint64_t>> seen_;
};

}  // namespace monoref
