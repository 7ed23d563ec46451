// Every stage under every contract that `monoref list` names: exact, or left out in words.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "fuzz/campaign.hpp"

namespace monoref {
namespace {

/// The presets, and the default with one field at another of its values.
std::vector<Contract> contracts() {
  std::vector<Contract> list;
  for (const std::string_view preset : contract_presets()) list.push_back(Contract::parse(preset));
  for (const ContractField& field : contract_fields())
    for (const std::string_view value : field.values) {
      const Contract contract = Contract::parse(fmt::format("mono,{}={}", field.name, value));
      if (contract != Contract{}) list.push_back(contract);
    }
  return list;
}

class EveryContract : public testing::TestWithParam<const Stage*> {
 protected:
  /// Draws of a campaign; which of them differs from contract to contract.
  CaseResult judge(const Contract& contract, std::uint64_t index, bool deep) {
    const Draw draw = draw_case(*GetParam(), 9, index, contract);
    const auto earlier =
        deep && GetParam()->launch ? std::optional(Companion{9, index}) : std::nullopt;
    return judge_draw(draw, earlier, {&runner_}, deep || !GetParam()->launch);
  }

  KernelRunner runner_{device::make_host_backend(64)};
};

TEST_P(EveryContract, IsExactOrLeftOut) {
  constexpr std::uint64_t kCases = 4;  // the first with properties and reused buffers
  std::uint64_t index = 0;
  std::size_t taken = 0;
  for (const Contract& contract : contracts()) {
    const auto refusal = contract_refusal(*GetParam(), contract);
    taken += refusal ? 0 : 1;
    for (std::uint64_t i = 0; i < (refusal ? 1 : kCases); ++i) {
      const CaseResult result = judge(contract, index++, i == 0);
      SCOPED_TRACE(result.line);
      ASSERT_FALSE(result.runs.empty() && refusal);
      if (refusal) {
        EXPECT_EQ(result.verdict(), Verdict::kRefused);
        if (result.refusal_was_expected) continue;  // for another reason, it may be
        EXPECT_NE(result.runs.front().message.find(*refusal), std::string::npos)
            << result.runs.front().message << " instead of " << *refusal;
      } else if (result.verdict() != Verdict::kExact) {
        EXPECT_TRUE(result.verdict() == Verdict::kRefused && result.refusal_was_expected)
            << verdict_name(result.verdict()) << ": " << result.decisive()->runner << ": "
            << result.decisive()->message;
      }
    }
  }
  EXPECT_GT(taken, 0U);
}

INSTANTIATE_TEST_SUITE_P(Stages, EveryContract, testing::ValuesIn(select_stages("all")),
                         [](const auto& instance) { return std::string(instance.param->name); });

}  // namespace
}  // namespace monoref
