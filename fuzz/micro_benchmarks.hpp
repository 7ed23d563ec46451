// What is worth timing in the formats and the arithmetic, for `monoref bench`.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace monoref {

/// One thing to time on one core.
struct MicroBenchmark {
  std::string name;           ///< e4m3fn_encode, hopper-mma_bf16_dot, ...
  std::string unit;           ///< what an item is: values, multiply-adds
  std::size_t items = 0;      ///< processed by one call of `run`
  double goal = 0;            ///< items a second that the project asks for; 0: none
  std::function<void()> run;  ///< works on data made beforehand, which it keeps alive
};

/// FP8 and BF16 conversions of rows that fit the first-level caches, dots of length 6144 under
/// every profile, exp2 and the bounded dot; a row of attention, block scores and a selection at the
/// model's sizes.
std::vector<MicroBenchmark> micro_benchmarks();

}  // namespace monoref
