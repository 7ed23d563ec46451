// The nvidia backend on a real device: the same behaviour as everywhere, its verdicts, its speed.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>

#include "tests/device/behaviour.hpp"
#include "tests/device/launcher.hpp"

namespace monoref::device {
namespace {

class NvidiaBehaviour : public testing::TestWithParam<BehaviourTest> {};

TEST_P(NvidiaBehaviour, IsRight) {
  GetParam().run(*make_nvidia_backend());
}

INSTANTIATE_TEST_SUITE_P(Nvidia, NvidiaBehaviour, testing::ValuesIn(behaviour_tests()),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

TEST(Nvidia, CrashAndRecovery) {
  const auto backend = make_nvidia_backend();
  const std::vector<std::uint8_t> bytes(8, 3);
  std::uint8_t* const null = nullptr;
  for (int repeat = 0; repeat < 3; ++repeat) {
    backend->place(std::vector{buffer("a", bytes)});
    RunReport report = run(*backend, "monoref_test_store", row(1, 1), null, std::int64_t{8}, 1U);
    EXPECT_EQ(report.status, RunStatus::kCrashed);
    EXPECT_NE(report.message.find("kernel 'monoref_test_store': "), std::string::npos)
        << report.message;
    backend->place(std::vector{buffer("a", bytes)});
    report = run(*backend, "monoref_test_store", row(1, 1), pointer<std::uint8_t>(*backend, 0),
                 std::int64_t{0}, 24U);
    EXPECT_EQ(report.status, RunStatus::kOk) << report.message;
    EXPECT_EQ(content<std::uint8_t>(*backend, 0, 8)[0], 24);
  }
}

TEST(Nvidia, GapBetweenExtentsFaults) {
  const auto backend = make_nvidia_backend();
  const std::vector<std::uint8_t> image(8, 1);
  backend->place(std::vector{BufferRequest{
      "cache", {{0, 4}, {std::uint64_t{1} << 42, 4}}, 16, std::as_bytes(std::span(image))}});
  const RunReport report = run(*backend, "monoref_test_store", row(1, 64),
                               pointer<std::uint8_t>(*backend, 0), std::int64_t{1} << 41, 1U);
  EXPECT_EQ(report.status, RunStatus::kCrashed);
}

TEST(Nvidia, CasesASecond) {
  const auto backend = make_nvidia_backend();
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

// The last test of the program: nothing runs on the device after it.
TEST(NvidiaZ, Hang) {
  const auto backend = make_nvidia_backend();
  const std::vector<std::uint32_t> zero(1);
  backend->place(std::vector{buffer("flag", zero)});
  backend->set_time_limit(0.5);
  const RunReport report =
      run(*backend, "monoref_test_spin", row(1, 64), pointer<const std::uint32_t>(*backend, 0));
  EXPECT_EQ(report.status, RunStatus::kHung);
  EXPECT_NE(report.message.find("the device must be reset"), std::string::npos) << report.message;
  EXPECT_THROW(backend->place(std::vector{buffer("flag", zero)}), Unavailable);
}

}  // namespace
}  // namespace monoref::device
