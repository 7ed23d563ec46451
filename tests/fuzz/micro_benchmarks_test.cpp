// The list of things to time: that each runs, and that names are unique.
#include "fuzz/micro_benchmarks.hpp"

#include <gtest/gtest.h>

#include <set>

namespace monoref {
namespace {

TEST(MicroBenchmarks, EachRunsAndHasItsOwnName) {
  std::set<std::string> names;
  for (const MicroBenchmark& benchmark : micro_benchmarks()) {
    EXPECT_TRUE(names.insert(benchmark.name).second) << benchmark.name;
    EXPECT_GT(benchmark.items, 0u);
    EXPECT_NO_THROW(benchmark.run());
  }
  for (const char* name : {"e4m3fn_encode", "e4m3fn_decode", "portable_bf16_dot",
                           "hopper-mma_e4m3_dot", "hopper-wgmma_e4m3_dot"})
    EXPECT_EQ(names.count(name), 1u) << name;
}

}  // namespace
}  // namespace monoref
