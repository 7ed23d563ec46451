// The host executor: what it does right, and what it says of kernels that do wrong.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <numeric>
#include <thread>

#include "tests/device/behaviour.hpp"
#include "tests/device/launcher.hpp"

namespace monoref::device {
namespace {

using ::testing::TestWithParam;

struct BehaviourParam {
  int wave;
  BehaviourTest test;
};

std::vector<BehaviourParam> all_behaviours() {
  std::vector<BehaviourParam> params;
  for (const int wave : {64, 32})
    for (const BehaviourTest& test : behaviour_tests()) params.push_back({wave, test});
  return params;
}

class HostBehaviour : public TestWithParam<BehaviourParam> {};

TEST_P(HostBehaviour, IsRight) {
  GetParam().test.run(*make_host_backend(GetParam().wave));
}

INSTANTIATE_TEST_SUITE_P(Host, HostBehaviour, testing::ValuesIn(all_behaviours()),
                         [](const auto& parameter) {
                           return parameter.param.test.name + std::string("Wave") +
                                  std::to_string(parameter.param.wave);
                         });

/// A backend with an input, an output, and a good launch to end with.
class HostVerdict : public TestWithParam<int> {
 protected:
  HostVerdict() : backend_(make_host_backend(GetParam())) { place(); }

  void place() { backend_->place(std::vector{buffer("in", in_), buffer("out", out_)}); }
  template <class T>
  T* out() const {
    return pointer<T>(*backend_, 1);
  }
  const std::uint8_t* in() const { return pointer<const std::uint8_t>(*backend_, 0); }

  /// Whatever went wrong before, the next case runs.
  void TearDown() override {
    for (const std::uint32_t threads : {64U, 512U}) {
      const std::vector<std::int32_t> poison(40, -1);
      backend_->place(std::vector{buffer("sums", poison)});
      struct {
        std::int32_t factor = 1, offset = 0;
      } contribution;
      const RunReport report = run(*backend_, "monoref_test_two_level_sum", row(40, threads),
                                   contribution, pointer<std::int32_t>(*backend_, 0));
      EXPECT_EQ(report.status, RunStatus::kOk) << report.message;
      const auto sums = content<std::int32_t>(*backend_, 0, 40);
      const auto all = static_cast<std::int32_t>(40 * threads);
      EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), 0), all * (all - 1) / 2);
    }
  }

  void expect_crash(const RunReport& report, const std::vector<std::string>& parts) {
    EXPECT_EQ(report.status, RunStatus::kCrashed);
    for (const std::string& part : parts)
      EXPECT_NE(report.message.find(part), std::string::npos)
          << "'" << part << "' is not in: " << report.message;
  }

  std::vector<std::uint8_t> in_ = std::vector<std::uint8_t>(100, 7);
  std::vector<std::uint32_t> out_ = std::vector<std::uint32_t>(1024, 0xdddddddd);
  std::unique_ptr<Backend> backend_;
};

INSTANTIATE_TEST_SUITE_P(Host, HostVerdict, testing::Values(64, 32), [](const auto& parameter) {
  return "Wave" + std::to_string(parameter.param);
});

TEST_P(HostVerdict, TwoBarriers) {
  expect_crash(run(*backend_, "monoref_test_two_barriers", row(3, 128), 100U),
               {"monoref_test_two_barriers", "threads diverge", "in block (0,0,0)",
                "100 of 128 live threads wait for the barrier at broken.hip:",
                "1 of 128 live threads waits for the barrier at broken.hip:",
                "(first: thread (0,0,0))", "(first: thread (100,0,0))"});
}

TEST_P(HostVerdict, BarrierInBranch) {
  expect_crash(run(*backend_, "monoref_test_barrier_in_branch", row(1, 64), 10U),
               {"threads diverge", "10 of 64 live threads", "(first: thread (10,0,0))"});
}

TEST_P(HostVerdict, MissingLane) {
  expect_crash(run(*backend_, "monoref_test_missing_lane", row(1, 128), out<std::int32_t>()),
               {"threads diverge", "for the shuffle at broken.hip:",
                "for the barrier at broken.hip:", "(first: thread (5,0,0))"});
}

TEST_P(HostVerdict, TwoBallots) {
  expect_crash(run(*backend_, "monoref_test_two_ballots", row(1, 64), out<std::uint64_t>()),
               {"threads diverge", "for the ballot, any or all at broken.hip:",
                "(first: thread (0,0,0))", "(first: thread (1,0,0))"});
}

TEST_P(HostVerdict, ExitedLane) {
  expect_crash(run(*backend_, "monoref_test_exited_lane", row(2, 64), out<std::int32_t>()),
               {"block (0,0,0)", "reads lane 5, which has exited"});
}

TEST_P(HostVerdict, LaneThatIsNone) {
  const std::string lanes = std::to_string(GetParam());
  expect_crash(
      run(*backend_, "monoref_test_shuffle_from", row(1, 64), GetParam(), out<std::int32_t>()),
      {"reads lane " + lanes + ", the wave has " + lanes});
  expect_crash(run(*backend_, "monoref_test_shuffle_from", row(1, 64), -1, out<std::int32_t>()),
               {"reads lane -1"});
  expect_crash(run(*backend_, "monoref_test_shuffle_from", row(1, 20), 20, out<std::int32_t>()),
               {"reads lane 20, which the block does not have"});
}

TEST_P(HostVerdict, ReadPastTheEnd) {
  // 100 bytes rounded up to 16 are 112: the page without access begins there.
  expect_crash(
      run(*backend_, "monoref_test_load", row(2, 64), in(), std::int64_t{112}, out<std::uint8_t>()),
      {"block (0,0,0), thread (0,0,0)", "buffer 'in': read 12 bytes past its end (100 bytes)"});
  place();
  expect_crash(run(*backend_, "monoref_test_load", row(1, 64), in(), std::int64_t{-100000},
                   out<std::uint8_t>()),
               {"buffer 'in': read 100000 bytes before its start"});
}

TEST_P(HostVerdict, EndsExactlyAtThePage) {
  in_.resize(96);
  place();
  expect_crash(
      run(*backend_, "monoref_test_load", row(1, 64), in(), std::int64_t{96}, out<std::uint8_t>()),
      {"buffer 'in': read 0 bytes past its end (96 bytes)"});
}

TEST_P(HostVerdict, WritePastTheEnd) {
  auto* const at = pointer<std::uint8_t>(*backend_, 0);
  expect_crash(run(*backend_, "monoref_test_store", row(1, 64), at, std::int64_t{4096}, 1U),
               {"buffer 'in': write 3996 bytes past its end (100 bytes)"});
}

TEST_P(HostVerdict, GapBetweenExtents) {
  const std::vector<std::uint8_t> image(8, 1);
  backend_->place(std::vector{BufferRequest{
      "cache", {{0, 4}, {std::uint64_t{1} << 42, 4}}, 16, std::as_bytes(std::span(image))}});
  expect_crash(run(*backend_, "monoref_test_store", row(1, 64), pointer<std::uint8_t>(*backend_, 0),
                   std::int64_t{1} << 41, 1U),
               {"buffer 'cache': write at byte 2199023255552, between its extents"});
}

TEST_P(HostVerdict, NullPointer) {
  std::uint8_t* const null = nullptr;
  expect_crash(run(*backend_, "monoref_test_store", row(1, 64), null, std::int64_t{8}, 1U),
               {"write at address 0x8, which no buffer is near"});
}

TEST_P(HostVerdict, Misaligned) {
  const auto* const odd = reinterpret_cast<const std::uint32_t*>(in() + 4);
  expect_crash(run(*backend_, "monoref_test_copy16", row(1, 1), odd, out<std::uint32_t>()),
               {"access of 16 bytes", "which is no multiple of it"});
}

TEST_P(HostVerdict, StackOverflow) {
  RunReport report =
      run(*backend_, "monoref_test_recursion", row(1, 64), 40U, out<std::uint32_t>());
  EXPECT_EQ(report.status, RunStatus::kOk) << report.message;
  std::uint32_t expected = 0;
  for (std::uint32_t depth = 0; depth <= 40; ++depth) expected += depth % 8 + 1;
  EXPECT_EQ(content<std::uint32_t>(*backend_, 1, 1024)[63], expected);
  expect_crash(run(*backend_, "monoref_test_recursion", row(1, 64), 100000U, out<std::uint32_t>()),
               {"thread (0,0,0)", "stack overflow"});
}

TEST_P(HostVerdict, SharedMemory) {
  RunReport report = run(*backend_, "monoref_test_shared_store", row(1, 64), std::int64_t{99});
  EXPECT_EQ(report.status, RunStatus::kOk) << report.message;
  expect_crash(run(*backend_, "monoref_test_shared_store", row(1, 64), std::int64_t{100}),
               {"block (0,0,0)", "write past the end of shared array 'table'"});
  report = run(*backend_, "monoref_test_dynamic_load", row(1, 64, 32), std::int64_t{31},
               out<std::uint8_t>());
  EXPECT_EQ(report.status, RunStatus::kOk) << report.message;
  expect_crash(run(*backend_, "monoref_test_dynamic_load", row(1, 64, 32), std::int64_t{32},
                   out<std::uint8_t>()),
               {"read past the end of the block's dynamic shared memory"});
  report = run(*backend_, "monoref_test_much_shared", row(1, 64, 96 * 1024), out<std::uint32_t>());
  EXPECT_EQ(report.status, RunStatus::kOk) << report.message;
  expect_crash(
      run(*backend_, "monoref_test_much_shared", row(1, 64, 96 * 1024 + 1), out<std::uint32_t>()),
      {"shared array 'table' of 65536 bytes does not fit, a block has 163840"});
}

TEST_P(HostVerdict, SharedMemoryIsPoisoned) {
  for (int launch = 0; launch < 2; ++launch) {
    RunReport report = run(*backend_, "monoref_test_dynamic_load", row(1, 64, 32), std::int64_t{7},
                           out<std::uint8_t>());
    EXPECT_EQ(report.status, RunStatus::kOk) << report.message;
    EXPECT_EQ(content<std::uint32_t>(*backend_, 1, 1024)[0] & 0xff, 0x7fU);
  }
}

#if !defined(__SANITIZE_ADDRESS__)  // with the sanitizers a division by zero ends the program
TEST_P(HostVerdict, DivisionByZero) {
  expect_crash(run(*backend_, "monoref_test_divide", row(1, 64), 0, out<std::int32_t>()),
               {"integer division by zero"});
}
#endif

class HostTimeLimit : public HostVerdict {
 protected:
  template <class... Args>
  void expect_hung(std::string_view kernel, const Grid& grid, const Args&... args) {
    backend_->set_time_limit(0.1);
    const auto start = std::chrono::steady_clock::now();
    const RunReport report = run(*backend_, kernel, grid, args...);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    EXPECT_EQ(report.status, RunStatus::kHung);
    EXPECT_NE(report.message.find("ran at the time limit of 0.1 s"), std::string::npos)
        << report.message;
    EXPECT_GE(took.count(), 0.1);
    backend_->set_time_limit(10);
  }
};

INSTANTIATE_TEST_SUITE_P(Host, HostTimeLimit, testing::Values(64, 32), [](const auto& parameter) {
  return "Wave" + std::to_string(parameter.param);
});

TEST_P(HostTimeLimit, LoopWithoutYield) {
  in_.assign(4, 0);
  place();
  const auto* const flag = pointer<const std::uint32_t>(*backend_, 0);
  expect_hung("monoref_test_spin", row(1, 64), flag);
}

TEST_P(HostTimeLimit, LoopWithoutYieldOnAllThreads) {
  in_.assign(4, 0);
  place();
  const auto* const flag = pointer<const std::uint32_t>(*backend_, 0);
  expect_hung("monoref_test_spin", row(512, 64), flag);
}

TEST_P(HostTimeLimit, LoopWithYield) {
  in_.assign(4, 0);
  place();
  const auto* const flag = pointer<const std::uint32_t>(*backend_, 0);
  expect_hung("monoref_test_spin_relaxed", row(1, 64), flag);
  place();
  expect_hung("monoref_test_spin_relaxed", cooperative(16, 1024), flag);
}

TEST_P(HostTimeLimit, ThingsAfterAFailureAreLeftOut) {
  in_.assign(4, 0);
  place();
  const auto* const flag = pointer<const std::uint32_t>(*backend_, 0);
  auto* const at = pointer<std::uint8_t>(*backend_, 1);
  const std::int64_t index = 0;
  const std::uint32_t value = 1;
  backend_->set_time_limit(0.1);
  backend_->launch("monoref_test_spin", row(1, 1), std::vector<KernelArgument>{argument(flag)});
  backend_->launch("monoref_test_store", row(1, 1),
                   std::vector<KernelArgument>{argument(at), argument(index), argument(value)});
  EXPECT_EQ(backend_->finish().status, RunStatus::kHung);
  EXPECT_EQ(content<std::uint32_t>(*backend_, 1, 1024), out_);
  EXPECT_EQ(backend_->finish().status, RunStatus::kOk);
  backend_->set_time_limit(10);
}

TEST(HostExecutor, LargeCooperativeLaunch) {
  // The decode step's own grid: 256 blocks of 512 threads, all alive at once.
  const auto backend = make_host_backend(64);
  const std::vector<std::uint32_t> totals(256 * 512);
  backend->place(std::vector{buffer("totals", totals)});
  Grid grid = cooperative(256, 512);
  grid.shared_bytes = 512 * 8;
  const RunReport report =
      run(*backend, "monoref_executor_barriers", grid, 20U, pointer<std::uint32_t>(*backend, 0));
  EXPECT_EQ(report.status, RunStatus::kOk) << report.message;
  std::vector<std::uint32_t> expected;
  for (std::uint32_t block = 0; block < 256; ++block)
    for (std::uint32_t thread = 0; thread < 512; ++thread) {
      std::uint32_t total = 0;
      for (std::uint32_t round = 0; round < 20; ++round) total += (thread + round) % 512;
      expected.push_back(total);
    }
  EXPECT_EQ(content<std::uint32_t>(*backend, 0, totals.size()), expected);
}

TEST(HostExecutor, SeveralOsThreadsAtOnce) {
  std::vector<std::thread> users;
  std::vector<std::int64_t> sums(4);
  for (std::size_t user = 0; user < sums.size(); ++user)
    users.emplace_back([&sums, user] {
      const auto backend = make_host_backend(user % 2 == 0 ? 64 : 32);
      for (int repeat = 0; repeat < 20; ++repeat) {
        const std::vector<std::uint32_t> poison(320, 0);
        backend->place(std::vector{buffer("sums", poison)});
        run(*backend, "monoref_test_barrier_after_exit", row(1, 320, 320 * 4), 300U,
            pointer<std::uint32_t>(*backend, 0));
        const auto got = content<std::uint32_t>(*backend, 0, 320);
        sums[user] = std::accumulate(got.begin(), got.end(), sums[user]);
      }
    });
  for (std::thread& user : users) user.join();
  EXPECT_EQ(sums, std::vector<std::int64_t>(4, std::int64_t{20} * 300 * (300 * 299 / 2)));
}

TEST(HostExecutor, Faults) {
  const auto value = [](Backend& backend) {
    const std::vector<std::uint32_t> poison(1, 0xdddddddd);
    backend.place(std::vector{buffer("out", poison)});
    run(backend, "monoref_test_fault", row(1, 64), pointer<std::uint32_t>(backend, 0));
    return content<std::uint32_t>(backend, 0, 1)[0];
  };
  for (const int wave : {64, 32}) {
    const auto shipped = make_host_backend(wave);
    const auto with_faults = make_host_backend(wave, KernelBuild::kWithFaults);
    EXPECT_EQ(value(*with_faults), 1U);
    set_active_fault("test_fault");
    EXPECT_EQ(value(*with_faults), 2U);
    EXPECT_EQ(value(*shipped), 1U);
    set_active_fault("another_fault");
    EXPECT_EQ(value(*with_faults), 1U);
    set_active_fault("");
    EXPECT_EQ(value(*with_faults), 1U);
  }
}

TEST(HostExecutor, RefusesOtherWaves) {
  EXPECT_THROW(make_host_backend(16), std::invalid_argument);
  EXPECT_THROW(make_host_backend(0, KernelBuild::kWithFaults), std::invalid_argument);
}

TEST(HostMemory, RefusesWrongRequests) {
  const auto backend = make_host_backend(64);
  const std::vector<std::uint8_t> bytes(8);
  const auto message = [&](BufferRequest request) -> std::string {
    try {
      backend->place(std::vector{std::move(request)});
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "placed";
  };
  const auto image = std::as_bytes(std::span(bytes));
  EXPECT_EQ(message({"a", {{0, 8}}, 24, image}),
            "buffer 'a': alignment is 24, must be a power of two up to 4096");
  EXPECT_EQ(message({"a", {{0, 8}}, 16, image, {}, 16}),
            "buffer 'a': base_offset is 16, must be below its alignment, 16");
  EXPECT_EQ(message({"a", {{0, 9}}, 16, image}),
            "buffer 'a': image has 8 bytes, its extents have 9");
  EXPECT_NE(message({"a", {{4, 4}, {6, 4}}, 16, image}).find("buffer 'a': extent of 4 bytes at 6"),
            std::string::npos);
  EXPECT_EQ(message({"a", {{0, 4}, {4, 4}}, 16, image}), "placed");
  EXPECT_THROW(backend->write(0, image.first(7)), std::invalid_argument);
}

TEST(HostMemory, KeepsAlignmentAndContentOverManyCases) {
  const auto backend = make_host_backend(64);
  std::uint32_t state = 1;
  const auto next = [&state](std::uint32_t below) {
    state = state * 1664525U + 1013904223U;
    return (state >> 8) % below;
  };
  for (int repeat = 0; repeat < 300; ++repeat) {
    std::vector<std::vector<std::uint8_t>> images;
    for (std::uint32_t i = 0; i < 6; ++i) {
      images.emplace_back(next(20000));
      for (std::uint8_t& byte : images.back()) byte = static_cast<std::uint8_t>(next(256));
    }
    std::vector<BufferRequest> requests;
    for (const auto& image : images)
      requests.push_back(buffer("b", image, std::size_t{1} << next(13)));
    backend->place(requests);
    EXPECT_EQ(backend->damaged_guard(), std::nullopt);
    for (std::size_t i = 0; i < images.size(); ++i) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(backend->address(i)) % requests[i].alignment, 0U);
      EXPECT_EQ(content<std::uint8_t>(*backend, i, images[i].size()), images[i]);
    }
  }
}

TEST(HostMemory, BeginsBuffersOffTheirAlignmentAndGuardsBothEnds) {
  const auto backend = make_host_backend(64);
  const std::vector<std::uint8_t> bytes(48, 7);
  const auto image = std::as_bytes(std::span(bytes));
  for (std::size_t offset = 0; offset < 16; ++offset) {
    backend->place(
        std::vector<BufferRequest>{{"dense", {{0, 48}}, 16, image, {}, offset},
                                   {"sparse", {{9, 8}, {70000, 40}}, 16, image, {}, offset}});
    EXPECT_EQ(backend->damaged_guard(), std::nullopt) << offset;
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(backend->address(i)) % 16, offset);
      EXPECT_EQ(content<std::uint8_t>(*backend, i, 48), bytes);
    }
    auto* const base = static_cast<std::uint8_t*>(backend->address(0));
    base[-1] ^= 1;
    EXPECT_NE(backend->damaged_guard(), std::nullopt) << offset;
    base[-1] ^= 1;
    if (offset == 0) continue;  // the buffer ends where no access begins
    base[48] ^= 1;
    EXPECT_NE(backend->damaged_guard(), std::nullopt) << offset;
  }
}

TEST(HostTimeLimitOfAProcess, TimeWithoutAProcessorIsNone) {
  // In a process of its own, which is stopped for longer than its kernel may take.
  const auto child = [] {
    std::vector<std::uint32_t> flag(1);
    const auto backend = make_host_backend(64);
    backend->set_time_limit(0.7);
    backend->place(std::vector{buffer("flag", flag)});
    auto* const word = pointer<std::uint32_t>(*backend, 0);
    std::thread([word] {  // lets the kernel go on a while after the stop
      const pid_t waker = fork();
      if (waker == 0) {
        kill(getppid(), SIGSTOP);
        usleep(1'200'000);
        kill(getppid(), SIGCONT);
        _exit(0);
      }
      // The waker's end is the only sign that the stop is over which no schedule can hide.
      while (waitpid(waker, nullptr, 0) < 0 && errno == EINTR) continue;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      std::atomic_ref(*word).store(1);
    })
        .detach();
    const RunReport report =
        run(*backend, "monoref_test_spin", row(1, 1), static_cast<const std::uint32_t*>(word));
    std::fprintf(stderr, "%s\n", report.message.c_str());
    std::_Exit(report.status == RunStatus::kOk ? 0 : 1);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(child(), testing::ExitedWithCode(0), "");
}

volatile std::sig_atomic_t foreign_fault = 0;

TEST(Signals, FaultsOutsideALaunchGoToThePreviousHandler) {
  // Runs in a process of its own, where a handler is in place before the executor's.
  const auto child = [] {
    struct sigaction action{};
    action.sa_handler = [](int) {
      foreign_fault = 1;
      std::_Exit(42);
    };
    sigaction(SIGSEGV, &action, nullptr);
    const auto backend = make_host_backend(64);
    std::uint8_t* const null = nullptr;
    const RunReport report =
        run(*backend, "monoref_test_store", row(1, 64), null, std::int64_t{8}, 1U);
    if (report.status != RunStatus::kCrashed || foreign_fault != 0) std::_Exit(1);
    std::raise(SIGSEGV);
    std::_Exit(2);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(child(), testing::ExitedWithCode(42), "");
}

}  // namespace
}  // namespace monoref::device
