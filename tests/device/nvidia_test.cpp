// The nvidia backend on a real device: the same behaviour as everywhere, its verdicts, its speed.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "tests/device/behaviour.hpp"
#include "tests/device/launcher.hpp"

namespace monoref::device {
namespace {

constexpr int kFirst[] = {0};

class NvidiaBehaviour : public testing::TestWithParam<BehaviourTest> {};

TEST_P(NvidiaBehaviour, IsRight) {
  GetParam().run(*make_nvidia_backend(kFirst));
}

INSTANTIATE_TEST_SUITE_P(Nvidia, NvidiaBehaviour, testing::ValuesIn(behaviour_tests()),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

TEST(Nvidia, CasesASecond) {
  const auto backend = make_nvidia_backend(kFirst);
  const std::vector<std::uint8_t> bytes(2000, 3);
  constexpr int kCases = 20000;
  int right = 0;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kCases; ++i) {
    backend->place(std::vector{buffer("a", bytes), buffer("b", bytes), buffer("c", bytes),
                               buffer("d", bytes), buffer("e", bytes)});
    run(*backend, "monoref_test_store", row(1, 64), pointer<std::uint8_t>(*backend, 1),
        std::int64_t{i % 2000}, 24U);
    if (!backend->damaged_guard() &&
        content<std::uint8_t>(*backend, 1, 2000)[static_cast<std::size_t>(i % 2000)] == 24)
      ++right;
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(right, kCases);
  std::printf("nvidia: %.0f cases a second\n", kCases / took.count());
}

/// A fault or a hang costs a process its device, so that each is tried in a process of its own.
/// Ends it with 0 if the verdict is `status` with `part` in its message, and the backend says that
/// it is unusable afterwards.
[[noreturn]] void end_with_verdict(Backend& backend, const RunReport& report, RunStatus status,
                                   std::string_view part) {
  bool right = report.status == status && report.message.find(part) != report.message.npos;
  std::fprintf(stderr, "%s\n", report.message.c_str());
  try {
    const std::vector<std::uint8_t> bytes(8);
    backend.place(std::vector{buffer("a", bytes)});
    right = false;
  } catch (const Unavailable& unavailable) {
    std::fprintf(stderr, "%s\n", unavailable.message.c_str());
  }
  std::_Exit(right ? 0 : 1);
}

class NvidiaDeathTest : public testing::Test {
 protected:
  NvidiaDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(NvidiaDeathTest, Crash) {
  const auto crash = [] {
    const auto backend = make_nvidia_backend(kFirst);
    const std::vector<std::uint8_t> bytes(8, 3);
    std::uint8_t* const null = nullptr;
    backend->place(std::vector{buffer("a", bytes)});
    const RunReport report =
        run(*backend, "monoref_test_store", row(1, 1), null, std::int64_t{8}, 1U);
    end_with_verdict(*backend, report, RunStatus::kCrashed, "kernel 'monoref_test_store': ");
  };
  EXPECT_EXIT(crash(), testing::ExitedWithCode(0), "did not recover");
}

TEST_F(NvidiaDeathTest, GapBetweenExtents) {
  const auto touch_gap = [] {
    const auto backend = make_nvidia_backend(kFirst);
    const std::vector<std::uint8_t> image(8, 1);
    backend->place(std::vector{BufferRequest{
        "cache", {{0, 4}, {std::uint64_t{1} << 42, 4}}, 16, std::as_bytes(std::span(image))}});
    const RunReport report = run(*backend, "monoref_test_store", row(1, 64),
                                 pointer<std::uint8_t>(*backend, 0), std::int64_t{1} << 41, 1U);
    end_with_verdict(*backend, report, RunStatus::kCrashed, "kernel 'monoref_test_store': ");
  };
  EXPECT_EXIT(touch_gap(), testing::ExitedWithCode(0), "did not recover");
}

TEST_F(NvidiaDeathTest, Hang) {
  const auto hang = [] {
    const auto backend = make_nvidia_backend(kFirst);
    const std::vector<std::uint32_t> zero(1);
    backend->place(std::vector{buffer("flag", zero)});
    backend->set_time_limit(0.5);
    const RunReport report =
        run(*backend, "monoref_test_spin", row(1, 64), pointer<const std::uint32_t>(*backend, 0));
    end_with_verdict(*backend, report, RunStatus::kHung, "still runs after 0.5 s");
  };
  EXPECT_EXIT(hang(), testing::ExitedWithCode(0), "the device must be reset");
}

}  // namespace
}  // namespace monoref::device
