// Every line that `monoref mutants --json` wrote: it kills its mutant again, and only its mutant.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "fuzz/campaign.hpp"

namespace monoref {
namespace {

std::string results_file;

/// Judges a line at one wave, on the kernels with planted faults.
CaseResult judge_at(int wave, const std::string& line) {
  KernelRunner runner(device::make_host_backend(wave, device::KernelBuild::kWithFaults));
  return judge_line(parse_line(line), {&runner});
}

TEST(MutantLines, EachKillsItsMutantAgainAndIsExactWithoutIt) {
  std::ifstream stream(results_file);
  const nlohmann::json mutants = nlohmann::json::parse(stream)["mutants"];
  ASSERT_FALSE(mutants.empty());
  for (const nlohmann::json& mutant : mutants) {
    const auto line = mutant["repro"].get<std::string>();
    const auto name = mutant["mutant"].get<std::string>();
    ASSERT_FALSE(line.empty()) << name;
    SCOPED_TRACE(name + ": " + line);
    try {
      device::set_active_fault(name);
      EXPECT_TRUE(is_failure(judge_at(mutant["wave"].get<int>(), line).verdict()));
      device::set_active_fault({});
      for (const int wave : {64, 32})
        EXPECT_EQ(judge_at(wave, line).verdict(), Verdict::kExact) << wave;
    } catch (const Refusal& refusal) {
      ADD_FAILURE() << refusal.what();
    }
  }
}

}  // namespace
}  // namespace monoref

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc != 2) return 2;
  monoref::results_file = argv[1];
  return RUN_ALL_TESTS();
}
