// The common part of the GPU backends, on a "device" that is this machine's memory and executor.
#include <gtest/gtest.h>

#include <chrono>

#include "tests/device/behaviour.hpp"
#include "tests/device/launcher.hpp"
#include "tests/device/pretend_runtime.hpp"

namespace monoref::device {
namespace {

class GpuBehaviour : public testing::TestWithParam<BehaviourTest> {};

TEST_P(GpuBehaviour, IsRight) {
  Script script;
  GetParam().run(*make_pretend_backend(script));
}

INSTANTIATE_TEST_SUITE_P(Gpu, GpuBehaviour, testing::ValuesIn(behaviour_tests()),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

TEST(GpuBackend, MovesACaseInOneCopyEachWay) {
  Script script;
  const auto backend = make_pretend_backend(script);
  const std::vector<std::uint8_t> bytes(1000, 3);
  backend->place(std::vector{buffer("a", bytes), buffer("b", bytes, 4096), buffer("c", bytes)});
  run(*backend, "monoref_test_store", row(1, 1), pointer<std::uint8_t>(*backend, 1),
      std::int64_t{1}, 24U);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(backend->address(1)) % 4096, 0U);
  EXPECT_EQ(content<std::uint8_t>(*backend, 1, 1000)[1], 24);
  EXPECT_EQ(content<std::uint8_t>(*backend, 2, 1000), bytes);
  EXPECT_EQ(script.copies_in, 1);
  EXPECT_EQ(script.copies_out, 1);
}

TEST(GpuBackend, NeighbouringExtentsShareACanary) {
  Script script;
  const auto backend = make_pretend_backend(script);
  const std::vector<std::uint8_t> image{1, 2, 3, 4, 5, 6, 7, 8, 9};
  const auto place = [&] {
    backend->place(std::vector{BufferRequest{"cache",
                                             {{0, 2}, {2, 2}, {100, 2}, {450, 2}, {5000, 1}},
                                             16,
                                             std::as_bytes(std::span(image))}});
  };
  const auto store = [&](std::int64_t index) {
    place();
    run(*backend, "monoref_test_store", row(1, 1), pointer<std::uint8_t>(*backend, 0), index, 24U);
    return backend->damaged_guard().value_or("none");
  };
  EXPECT_EQ(store(3), "none");
  EXPECT_EQ(content<std::uint8_t>(*backend, 0, 9),
            (std::vector<std::uint8_t>{1, 2, 3, 24, 5, 6, 7, 8, 9}));
  EXPECT_EQ(store(451), "none");
  EXPECT_EQ(content<std::uint8_t>(*backend, 0, 9),
            (std::vector<std::uint8_t>{1, 2, 3, 4, 5, 6, 7, 24, 9}));
  for (const std::int64_t between : {4, 99, 102, 449, 452, 4999})
    EXPECT_EQ(store(between), "buffer 'cache': written at byte " + std::to_string(between) +
                                  ", between its extents");
  EXPECT_EQ(store(-1), "buffer 'cache': written 1 bytes before its start");
  EXPECT_EQ(store(5001), "buffer 'cache': written 0 bytes past its end (5001 bytes)");
}

TEST(GpuBackend, BeginsBuffersOffTheirAlignment) {
  Script script;
  const auto backend = make_pretend_backend(script);
  const std::vector<std::uint8_t> bytes{1, 2, 3, 4, 5, 6, 7, 8, 9};
  const auto image = std::as_bytes(std::span(bytes));
  backend->place(std::vector<BufferRequest>{{"dense", {{0, 9}}, 16, image, {}, 6},
                                            {"sparse", {{0, 2}, {5000, 7}}, 16, image, {}, 10}});
  EXPECT_EQ(backend->damaged_guard(), std::nullopt);
  for (const auto& [index, offset] : {std::pair(0, 6), {1, 10}}) {
    const auto at = static_cast<std::size_t>(index);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(backend->address(at)) % 16,
              static_cast<std::uintptr_t>(offset));
    EXPECT_EQ(content<std::uint8_t>(*backend, at, 9), bytes);
  }
  run(*backend, "monoref_test_store", row(1, 1), pointer<std::uint8_t>(*backend, 1),
      std::int64_t{5007}, 24U);
  EXPECT_EQ(backend->damaged_guard(), "buffer 'sparse': written 0 bytes past its end (5007 bytes)");
}

TEST(GpuBackend, CrashAndRecovery) {
  Script script;
  const auto backend = make_pretend_backend(script);
  const std::vector<std::uint8_t> bytes(8, 3);
  std::uint8_t* const null = nullptr;
  backend->place(std::vector{buffer("a", bytes)});
  RunReport report = run(*backend, "monoref_test_store", row(1, 1), null, std::int64_t{8}, 1U);
  EXPECT_EQ(report.status, RunStatus::kCrashed);
  EXPECT_NE(report.message.find("kernel 'monoref_test_store': "), std::string::npos);
  backend->place(std::vector{buffer("a", bytes)});
  report = run(*backend, "monoref_test_store", row(1, 1), pointer<std::uint8_t>(*backend, 0),
               std::int64_t{0}, 24U);
  EXPECT_EQ(report.status, RunStatus::kOk) << report.message;
  EXPECT_EQ(content<std::uint8_t>(*backend, 0, 8)[0], 24);
  script.recovers = false;
  backend->place(std::vector{buffer("a", bytes)});
  report = run(*backend, "monoref_test_store", row(1, 1), null, std::int64_t{8}, 1U);
  EXPECT_EQ(report.status, RunStatus::kCrashed);
  EXPECT_THROW(backend->place(std::vector{buffer("a", bytes)}), Unavailable);
}

TEST(GpuBackend, TimeBetweenLooksIsNotTheKernels) {
  Script script;
  const auto backend = make_pretend_backend(script);
  backend->set_time_limit(0.1);
  const std::vector<std::uint8_t> bytes(8, 3);
  backend->place(std::vector{buffer("a", bytes)});
  script.between_looks = std::chrono::milliseconds(10);
  script.looks = 30;  // 0.3 s as the clock says, 0.03 s of looking
  const RunReport report = run(*backend, "monoref_test_store", row(1, 1),
                               pointer<std::uint8_t>(*backend, 0), std::int64_t{0}, 24U);
  EXPECT_EQ(report.status, RunStatus::kOk) << report.message;
}

TEST(GpuBackend, Hang) {
  Script script;
  const auto backend = make_pretend_backend(script);
  backend->set_time_limit(0.05);
  const std::vector<std::uint8_t> bytes(8, 3);
  backend->place(std::vector{buffer("a", bytes)});
  script.stuck = true;
  const RunReport report = run(*backend, "monoref_test_store", row(1, 1),
                               pointer<std::uint8_t>(*backend, 0), std::int64_t{0}, 24U);
  EXPECT_EQ(report.status, RunStatus::kHung);
  EXPECT_NE(report.message.find("the device must be reset"), std::string::npos);
  EXPECT_THROW(backend->place(std::vector{buffer("a", bytes)}), Unavailable);
}

std::vector<std::uint8_t> numbered(std::size_t count) {
  std::vector<std::uint8_t> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::uint8_t>(i);
  return bytes;
}

/// Stores one byte on a device.
void store(Backend& backend, std::size_t index, int device, std::int64_t at, std::uint32_t value) {
  auto* const base = static_cast<std::uint8_t*>(backend.address(index, device));
  const std::vector<KernelArgument> arguments{argument(base), argument(at), argument(value)};
  backend.launch("monoref_test_store", row(1, 32), arguments, device);
}

/// Four bytes of each of two devices, and four of both.
BufferRequest shared_out(const std::vector<std::uint8_t>& bytes) {
  BufferRequest request = buffer("parts", bytes);
  request.runs = {{0, 4, 1, 0}, {4, 4, 2, 1}, {8, 4, 3, -1}};
  return request;
}

TEST(SeveralDevices, EachHasItsPartsAtTheirOffsets) {
  Script script;
  const auto backend = make_pretend_backend(script, 2);
  const auto bytes = numbered(12);
  BufferRequest second_alone = buffer("alone", bytes);
  second_alone.runs = {{0, 12, 2, 1}};
  backend->place(std::vector{shared_out(bytes), second_alone});
  EXPECT_EQ(backend->devices(), 2);
  EXPECT_NE(backend->address(0, 0), backend->address(0, 1));
  EXPECT_EQ(backend->address(1, 0), nullptr);
  store(*backend, 0, 0, 1, 101);
  store(*backend, 0, 1, 6, 106);
  store(*backend, 1, 1, 11, 111);
  ASSERT_EQ(backend->finish().status, RunStatus::kOk);
  EXPECT_EQ(backend->damaged_guard(), std::nullopt);
  EXPECT_EQ(content<std::uint8_t>(*backend, 0, 12),
            (std::vector<std::uint8_t>{0, 101, 2, 3, 4, 5, 106, 7, 8, 9, 10, 11}));
  EXPECT_EQ(content<std::uint8_t>(*backend, 1, 12),
            (std::vector<std::uint8_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 111}));
}

TEST(SeveralDevices, PartsOfOthersAreGuards) {
  Script script;
  const auto backend = make_pretend_backend(script, 2);
  const auto bytes = numbered(12);
  const auto damage = [&](int device, std::int64_t at) {
    backend->place(std::vector{shared_out(bytes)});
    store(*backend, 0, device, at, 99);
    EXPECT_EQ(backend->finish().status, RunStatus::kOk);
    return backend->damaged_guard().value_or("none");
  };
  EXPECT_EQ(damage(0, 3), "none");
  EXPECT_EQ(damage(0, 5), "buffer 'parts': written at byte 5, between its extents on device 0");
  EXPECT_EQ(damage(1, 3), "buffer 'parts': written at byte 3, between its extents on device 1");
  EXPECT_EQ(damage(1, 12), "buffer 'parts': written 0 bytes past its end (12 bytes) on device 1");
  EXPECT_EQ(damage(1, 9), "buffer 'parts': byte 9 on device 1 is not what it is on device 0");
}

TEST(SeveralDevices, AnImageIsWrittenWhereItLies) {
  Script script;
  const auto backend = make_pretend_backend(script, 2);
  const std::vector<std::uint8_t> zeros(12);
  backend->place(std::vector{shared_out(zeros)});
  EXPECT_EQ(backend->finish().status, RunStatus::kOk);
  const auto bytes = numbered(12);
  backend->write(0, std::as_bytes(std::span(bytes)));
  store(*backend, 0, 1, 7, 107);
  EXPECT_EQ(backend->finish().status, RunStatus::kOk);
  EXPECT_EQ(backend->damaged_guard(), std::nullopt);
  EXPECT_EQ(content<std::uint8_t>(*backend, 0, 12),
            (std::vector<std::uint8_t>{0, 1, 2, 3, 4, 5, 6, 107, 8, 9, 10, 11}));
}

/// A token goes from a block on one device to a block on the other and back, in two launches.
TEST(SeveralDevices, KernelsWaitForEachOther) {
  Script script;
  const auto backend = make_pretend_backend(script, 2);
  const std::vector<std::uint32_t> zero(2);
  BufferRequest flags = buffer("flags", zero);
  flags.runs = {{0, 4, 1, 0}, {4, 4, 2, 1}};
  const std::vector<std::uint32_t> none(2);
  backend->place(std::vector{flags, buffer("done", none)});
  auto* const first = static_cast<std::uint32_t*>(backend->address(0, 0));
  auto* const second = static_cast<std::uint32_t*>(backend->address(0, 1)) + 1;
  backend->together([&] {
    for (int device = 0; device < 2; ++device) {
      std::uint32_t* const own = device == 0 ? first : second;
      std::uint32_t* const peer = device == 0 ? second : first;
      const std::vector<KernelArgument> arguments{argument(own), argument(peer)};
      backend->launch("monoref_test_meet", cooperative(1, 32), arguments, device);
    }
  });
  const RunReport report = backend->finish();
  ASSERT_EQ(report.status, RunStatus::kOk) << report.message;
  EXPECT_EQ(content<std::uint32_t>(*backend, 0, 2), (std::vector<std::uint32_t>{1, 1}));
}

TEST(SeveralDevices, TimeIsThatOfAllLaunches) {
  Script script;
  const auto backend = make_pretend_backend(script, 2);
  const auto bytes = numbered(12);
  backend->place(std::vector{shared_out(bytes)});
  const auto seconds = backend->device_seconds([&] {
    store(*backend, 0, 0, 0, 100);
    store(*backend, 0, 1, 4, 104);
  });
  ASSERT_TRUE(seconds);
  EXPECT_GT(*seconds, 0.0);
  EXPECT_EQ(backend->finish().status, RunStatus::kOk);
  EXPECT_EQ(content<std::uint8_t>(*backend, 0, 12)[4], 104);
}

TEST(SeveralDevices, AFaultOnOneIsTheVerdict) {
  Script script;
  const auto backend = make_pretend_backend(script, 2);
  const auto bytes = numbered(12);
  std::uint8_t* const null = nullptr;
  const std::int64_t at = 8;
  const std::uint32_t value = 1;
  const std::vector<KernelArgument> arguments{argument(null), argument(at), argument(value)};
  backend->place(std::vector{shared_out(bytes)});
  backend->launch("monoref_test_store", row(1, 1), arguments, 1);
  const RunReport report = backend->finish();
  EXPECT_EQ(report.status, RunStatus::kCrashed);
  EXPECT_NE(report.message.find("kernel 'monoref_test_store': "), std::string::npos);
  backend->place(std::vector{shared_out(bytes)});
  store(*backend, 0, 1, 4, 24);
  EXPECT_EQ(backend->finish().status, RunStatus::kOk);
  EXPECT_EQ(content<std::uint8_t>(*backend, 0, 12)[4], 24);
}

TEST(SeveralDevices, ThatCannotReachEachOtherAreRefused) {
  Script script;
  script.reaches = false;
  EXPECT_THROW(make_pretend_backend(script, 2), GpuError);
  EXPECT_NO_THROW(make_pretend_backend(script, 1));
}

TEST(SeveralDevices, NumbersMustExist) {
  const auto message = [](std::vector<int> devices, int count) {
    try {
      check_device_numbers("nvidia", devices, count);
    } catch (const Unavailable& unavailable) {
      return unavailable.message;
    }
    return std::string("none");
  };
  EXPECT_EQ(message({0, 1}, 2), "none");
  EXPECT_EQ(message({0, 2}, 2), "nvidia backend: there is no device 2; there are 2, from 0 on");
  EXPECT_EQ(message({0}, 0), "nvidia backend: there is no device");
}

TEST(SeveralDevices, RunsThatDoNotFitAreRefused) {
  Script script;
  const auto backend = make_pretend_backend(script, 2);
  const auto refused = [&](std::vector<DeviceRun> runs) {
    const auto bytes = numbered(12);
    BufferRequest request = buffer("parts", bytes);
    request.runs = std::move(runs);
    EXPECT_THROW(backend->place(std::vector{request}), std::invalid_argument);
  };
  refused({{0, 4, 1, 0}});                // ends early
  refused({{0, 4, 1, 0}, {5, 7, 2, 1}});  // a gap
  refused({{0, 12, 0, -1}});              // nobody
  refused({{0, 12, 4, -1}});              // a third device
  refused({{0, 12, 1, 1}});               // the source has it not
}

}  // namespace
}  // namespace monoref::device
