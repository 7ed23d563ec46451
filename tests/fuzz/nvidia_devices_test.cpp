// Ranks on two real devices.
#include "fuzz/runner.hpp"
#include "tests/fuzz/devices.hpp"

namespace monoref {
namespace {

constexpr int kTwo[] = {0, 1};

class NvidiaDevices : public testing::Test {
 protected:
  KernelRunner runner_{device::make_nvidia_backend(kTwo)};
};

TEST_F(NvidiaDevices, Reduce) {
  EXPECT_EQ(judge_draws("all_reduce", runner_, 20000, true,
                        [](const Params&, std::uint64_t) { return true; }),
            20000);
}

TEST_F(NvidiaDevices, RunLayersOfTwoAndOfFourRanks) {
  EXPECT_EQ(judge_draws("sparse_layer", runner_, 500, true,
                        [](Params& params, std::uint64_t index) {
                          params.set("ranks", index % 2 == 0 ? 2 : 4);
                          return true;
                        }),
            500);
}

TEST_F(NvidiaDevices, RunSteps) {
  EXPECT_EQ(judge_draws("decode_step", runner_, 100, true,
                        [](Params& params, std::uint64_t index) {
                          params.set("ranks", index % 2 == 0 ? 2 : 4);
                          params.set("defect", 0);
                          return true;
                        }),
            100);
}

}  // namespace
}  // namespace monoref
