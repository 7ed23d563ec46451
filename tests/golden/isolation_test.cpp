// A process that may die: every way to die is an answer, and the caller lives on.
#include "golden/isolation.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

namespace monoref::testing {
namespace {

using Bytes = std::vector<std::byte>;

TEST(Isolation, HandsBackTheAnswer) {
  EXPECT_EQ(run_isolated([] { return Bytes{}; }, {}).answer, Bytes{});
  // Far more than a pipe holds.
  const Bytes large(5'000'000, std::byte{7});
  const IsolatedResult result = run_isolated([&] { return large; }, {});
  EXPECT_TRUE(result.finished);
  EXPECT_EQ(result.answer, large);
}

TEST(Isolation, KeepsTheCallersMemory) {
  int value = 1;
  run_isolated([&] { return value = 2, Bytes{}; }, {});
  EXPECT_EQ(value, 1);
}

TEST(Isolation, NamesTheSignal) {
  for (const int fatal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGKILL}) {
    const IsolatedResult result = run_isolated(
        [=] {
          raise(fatal);
          return Bytes{};
        },
        {});
    EXPECT_FALSE(result.finished);
    EXPECT_EQ(result.failure, "crashed (signal " + std::to_string(fatal) + ")");
  }
}

TEST(Isolation, IsNotFooledByTheCallersHandlers) {
  // A harness catches faults of its kernels; a fault in the child must not run that code.
  const auto old = signal(SIGSEGV, [](int) { _exit(0); });
  const IsolatedResult result = run_isolated(
      [] {
        raise(SIGSEGV);
        return Bytes{};
      },
      {});
  signal(SIGSEGV, old);
  EXPECT_EQ(result.failure, "crashed (signal 11)");
}

TEST(Isolation, NamesAnExit) {
  const IsolatedResult result = run_isolated([]() -> Bytes { _exit(3); }, {});
  EXPECT_EQ(result.failure, "failed (exit 3)");
}

TEST(Isolation, EndsAnEndlessLoop) {
  ReadLimits limits;
  limits.cpu_seconds = 1;
  const IsolatedResult result = run_isolated(
      [] {
        const std::atomic<bool> stop{false};
        while (!stop) continue;
        return Bytes{};
      },
      limits);
  EXPECT_EQ(result.failure, "took more than 1 seconds of processor time");
}

TEST(Isolation, EndsAnEndlessWait) {
  ReadLimits limits;
  limits.wall_seconds = 0.25;
  const IsolatedResult result = run_isolated(
      [] {
        while (true) pause();
        return Bytes{};
      },
      limits);
  EXPECT_EQ(result.failure, "took more than 0.25 seconds");
}

TEST(Isolation, DoesNotWaitForOthersThatHoldThePipe) {
  // As when another thread forks at the same time: a grandchild keeps the pipe open beyond the
  // limit.
  ReadLimits limits;
  limits.wall_seconds = 2;
  const IsolatedResult result = run_isolated(
      [] {
        if (fork() == 0) {
          sleep(4);
          _exit(0);
        }
        return Bytes{std::byte{9}};
      },
      limits);
  EXPECT_TRUE(result.finished) << result.failure;
  EXPECT_EQ(result.answer, Bytes{std::byte{9}});
}

TEST(Isolation, LimitsTheAnswer) {
  ReadLimits limits;
  limits.answer_bytes = 1000;
  EXPECT_TRUE(run_isolated([] { return Bytes(1000); }, limits).finished);
  EXPECT_EQ(run_isolated([] { return Bytes(1001); }, limits).failure,
            "answered with more than 1000 bytes");
}

#if !defined(__SANITIZE_ADDRESS__)
TEST(Isolation, LimitsMemoryBeyondWhatTheCallerHas) {
  // The caller holds far more than the limit, as one that reserves sparse tensors does.
  const std::size_t reserve = std::size_t{1} << 40;
  void* held =
      mmap(nullptr, reserve, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(held, MAP_FAILED);
  ReadLimits limits;
  limits.memory_bytes = std::size_t{64} << 20;
  const auto can_have = [&](std::size_t size) {
    return run_isolated(
               [=] {
                 void* memory = std::malloc(size);
                 const Bytes answer{memory == nullptr ? std::byte{0} : std::byte{1}};
                 std::free(memory);
                 return answer;
               },
               limits)
        .answer;
  };
  EXPECT_EQ(can_have(std::size_t{16} << 20), Bytes{std::byte{1}});
  EXPECT_EQ(can_have(std::size_t{128} << 20), Bytes{std::byte{0}});
  munmap(held, reserve);
}
#endif

}  // namespace
}  // namespace monoref::testing
