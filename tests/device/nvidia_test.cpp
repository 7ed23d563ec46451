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

TEST(Nvidia, ADeviceThatThereIsNotIsUnavailable) {
  constexpr int kNone[] = {0, 99};
  try {
    make_nvidia_backend(kNone);
    ADD_FAILURE() << "made";
  } catch (const Unavailable& unavailable) {
    EXPECT_EQ(unavailable.message.find("nvidia backend: there is no device 99; there are "), 0U)
        << unavailable.message;
  }
}

TEST(Nvidia, FaultsAreSwitchedInTheBuildThatHasThem) {
  const auto value = [](KernelBuild kernels) {
    const auto backend = make_nvidia_backend(kFirst, kernels);
    const std::vector<std::uint32_t> zero(1);
    backend->place(std::vector{buffer("out", zero)});
    run(*backend, "monoref_test_fault", row(1, 64), pointer<std::uint32_t>(*backend, 0));
    return content<std::uint32_t>(*backend, 0, 1)[0];
  };
  EXPECT_EQ(value(KernelBuild::kWithFaults), 1U);
  set_active_fault("test_fault");
  EXPECT_EQ(value(KernelBuild::kWithFaults), 2U);
  EXPECT_EQ(value(KernelBuild::kShipped), 1U);
  set_active_fault("");
  EXPECT_EQ(value(KernelBuild::kWithFaults), 1U);
}

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

// From here on two devices are needed.

constexpr int kTwo[] = {0, 1};

/// A flag of each device on it, and the kernels that raise the other's and wait for their own.
struct Meeting {
  explicit Meeting(Backend& on) : backend(on) {
    BufferRequest request = buffer("flags", zero);
    request.runs = {{0, 4, 1, 0}, {4, 4, 2, 1}};
    backend.place(std::vector{request});
  }
  void launch(int device) {
    std::uint32_t* const flags[] = {pointer_on(0), pointer_on(1) + 1};
    const std::vector<KernelArgument> arguments{argument(flags[device]),
                                                argument(flags[1 - device])};
    backend.launch("monoref_test_meet", cooperative(1, 32), arguments, device);
  }
  std::uint32_t* pointer_on(int device) const {
    return static_cast<std::uint32_t*>(backend.address(0, device));
  }

  Backend& backend;
  std::vector<std::uint32_t> zero = std::vector<std::uint32_t>(2);
};

TEST(NvidiaTwo, KernelsWaitForEachOther) {
  const auto backend = make_nvidia_backend(kTwo);
  constexpr int kCases = 2000;
  for (int i = 0; i < kCases; ++i) {
    Meeting meeting(*backend);
    backend->together([&] {
      for (const int device : kTwo) meeting.launch(device);
    });
    const RunReport report = backend->finish();
    ASSERT_EQ(report.status, RunStatus::kOk) << report.message;
    ASSERT_EQ(backend->damaged_guard(), std::nullopt);
    ASSERT_EQ(content<std::uint32_t>(*backend, 0, 2), (std::vector<std::uint32_t>{1, 1}));
  }
}

TEST(NvidiaTwo, APlaceOfAnotherDeviceIsAGuard) {
  const auto backend = make_nvidia_backend(kTwo);
  const std::vector<std::uint8_t> bytes(8, 3);
  BufferRequest request = buffer("parts", bytes);
  request.runs = {{0, 4, 1, 0}, {4, 4, 2, 1}};
  backend->place(std::vector{request});
  auto* const base = static_cast<std::uint8_t*>(backend->address(0, 1));
  const std::int64_t at = 3;
  const std::uint32_t value = 99;
  const std::vector<KernelArgument> arguments{argument(base), argument(at), argument(value)};
  backend->launch("monoref_test_store", row(1, 32), arguments, 1);
  ASSERT_EQ(backend->finish().status, RunStatus::kOk);
  EXPECT_EQ(backend->damaged_guard().value_or("none"),
            "buffer 'parts': written at byte 3, between its extents on device 1");
}

TEST_F(NvidiaDeathTest, HangOfADeviceWhosePeerNeverComes) {
  const auto hang = [] {
    const auto backend = make_nvidia_backend(kTwo);
    backend->set_time_limit(0.5);
    Meeting meeting(*backend);
    meeting.launch(1);
    end_with_verdict(*backend, backend->finish(), RunStatus::kHung, "still runs after 0.5 s");
  };
  EXPECT_EXIT(hang(), testing::ExitedWithCode(0), "the device must be reset");
}

TEST_F(NvidiaDeathTest, CrashOfTheSecond) {
  const auto crash = [] {
    const auto backend = make_nvidia_backend(kTwo);
    const std::vector<std::uint8_t> bytes(8, 3);
    std::uint8_t* const null = nullptr;
    const std::int64_t at = 8;
    const std::uint32_t value = 1;
    backend->place(std::vector{buffer("a", bytes)});
    const std::vector<KernelArgument> arguments{argument(null), argument(at), argument(value)};
    backend->launch("monoref_test_store", row(1, 1), arguments, 1);
    end_with_verdict(*backend, backend->finish(), RunStatus::kCrashed,
                     "kernel 'monoref_test_store': ");
  };
  EXPECT_EXIT(crash(), testing::ExitedWithCode(0), "did not recover");
}

}  // namespace
}  // namespace monoref::device
