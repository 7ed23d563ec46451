// Somebody's library: right, refusing, failing, crashing, hanging, and of another version.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <numeric>
#include <thread>

#include "device/backends/plugin.hpp"

namespace monoref::device {
namespace {

constexpr const char* kSample = MONOREF_SAMPLE_PLUGIN;

class PluginTest : public testing::Test {
 protected:
  /// Two inputs of 100 bytes, an output of 40.
  PluginCall call(std::string stage) const {
    PluginCall made;
    made.stage = std::move(stage);
    made.contract = "mono";
    made.inputs = {bytes("first", in_), bytes("second", in_)};
    made.outputs = {bytes("out", out_)};
    return made;
  }

  static PluginTensor bytes(std::string name, const std::vector<std::byte>& image) {
    const auto size = static_cast<std::int64_t>(image.size());
    return {std::move(name), "uint8", 1, {size}, {1}, {{0, image.size()}}, image};
  }

  void expect_crash(const std::string& stage, const std::string& part) {
    const PluginReport report = plugin_.run(call(stage), 10);
    EXPECT_EQ(report.status, PluginStatus::kCrashed);
    EXPECT_NE(report.message.find(part), std::string::npos) << report.message;
  }

  /// After every wrong one, a right one.
  void TearDown() override {
    const PluginReport report = plugin_.run(call("nothing"), 10);
    EXPECT_EQ(report.status, PluginStatus::kDone) << report.message;
    EXPECT_EQ(report.damaged_guard, std::nullopt);
    ASSERT_EQ(report.outputs.size(), 1U);
    EXPECT_EQ(report.outputs[0], out_);
  }

  std::vector<std::byte> in_ = std::vector<std::byte>(100, std::byte{7});
  std::vector<std::byte> out_ = std::vector<std::byte>(40, std::byte{0xdd});
  Plugin plugin_{kSample};
};

TEST_F(PluginTest, RunsAStage) {
  // x is [3, 4] with rows 6 apart, y the transpose of a [4, 3], out dense.
  std::vector<std::int32_t> x(3 * 6 - 2);
  std::vector<std::int32_t> y(12);
  std::iota(x.begin(), x.end(), 100);
  std::iota(y.begin(), y.end(), -5);
  const std::vector<std::int32_t> poison(12, -1);
  const auto tensor = [](std::string name, const std::vector<std::int32_t>& values,
                         std::vector<std::int64_t> strides) {
    return PluginTensor{std::move(name),
                        "int32",
                        4,
                        {3, 4},
                        std::move(strides),
                        {{0, values.size() * 4}},
                        std::as_bytes(std::span(values))};
  };
  PluginCall call;
  call.stage = "multiply_add";
  call.contract = "mono";
  call.scalars = {{"factor", std::int64_t{-3}}};
  call.inputs = {tensor("x", x, {6, 1}), tensor("y", y, {1, 3})};
  call.outputs = {tensor("out", poison, {4, 1})};
  const PluginReport report = plugin_.run(call, 10);
  EXPECT_EQ(report.status, PluginStatus::kDone) << report.message;
  EXPECT_EQ(report.damaged_guard, std::nullopt);
  std::vector<std::int32_t> expected;
  for (int i = 0; i < 3; ++i)
    for (int j = 0; j < 4; ++j) expected.push_back(-3 * (100 + 6 * i + j) + (-5 + i + 3 * j));
  ASSERT_EQ(report.outputs.size(), 1U);
  const auto image = std::as_bytes(std::span(expected));
  EXPECT_EQ(report.outputs[0], std::vector<std::byte>(image.begin(), image.end()));
}

TEST_F(PluginTest, HandsOverNamesScalarsAndExtents) {
  PluginCall asked = call("describe");
  asked.scalars = {{"q_len", std::int64_t{-4}}, {"scale", 0.25}, {"mode", std::string("dense")}};
  const std::vector<std::byte> image(24);
  asked.outputs = {
      {"cache", "int32", 4, {1, 2, 3}, {6, 3, 1}, {{0, 8}, {std::uint64_t{1} << 35, 16}}, image}};
  const PluginReport report = plugin_.run(asked, 10);
  EXPECT_EQ(report.status, PluginStatus::kRefused);
  EXPECT_EQ(report.message,
            "describe|mono|q_len=-4|scale=0.25|mode=dense|cache int32 rank 3|2 extents, second at "
            "8589934592 of 4");
}

TEST_F(PluginTest, SaysWhatItOffers) {
  EXPECT_EQ(plugin_.name(), "sample");
  EXPECT_TRUE(plugin_.offers("multiply_add", 10).offered);
  const PluginOffer unknown = plugin_.offers("unknown", 10);
  EXPECT_FALSE(unknown.offered);
  EXPECT_EQ(unknown.status, PluginStatus::kDone) << unknown.message;
}

TEST_F(PluginTest, TellsACrashAndAHangFromANo) {
  const PluginOffer crash = plugin_.offers("crash_over_offers", 10);
  EXPECT_EQ(crash.status, PluginStatus::kCrashed);
  EXPECT_EQ(crash.message.find("asked whether it offers 'crash_over_offers': the plugin died of "),
            0U)
      << crash.message;
  EXPECT_TRUE(plugin_.offers("multiply_add", 10).offered);
  EXPECT_EQ(plugin_.offers("hang_over_offers", 0.2).status, PluginStatus::kHung);
  EXPECT_TRUE(plugin_.offers("multiply_add", 10).offered);
}

TEST_F(PluginTest, Fails) {
  PluginReport report = plugin_.run(call("fail"), 10);
  EXPECT_EQ(report.status, PluginStatus::kFailed);
  EXPECT_EQ(report.message, "failed without a message");
  report = plugin_.run(call("nonsense"), 10);
  EXPECT_EQ(report.status, PluginStatus::kFailed);
  EXPECT_EQ(report.message, "run returned 7, which means nothing");
}

TEST_F(PluginTest, Crashes) {
  expect_crash("null", "write at address 0x8, which no tensor is near");
  expect_crash("read_past", "input 'first': read 3996 bytes past its end (100 bytes)");
  expect_crash("write_input", "input 'first': write at byte 0");
  expect_crash("write_far_past", "output 'out': write 24 bytes past its end (40 bytes)");
  expect_crash("abort", "the plugin died of signal 6");
  expect_crash("exit", "the plugin's process exited with 3");
}

TEST_F(PluginTest, WritesBesideAnOutput) {
  EXPECT_EQ(plugin_.run(call("write_past"), 10).damaged_guard.value_or("none"),
            "output 'out': written 0 bytes past its end (40 bytes)");
  EXPECT_EQ(plugin_.run(call("write_before"), 10).damaged_guard.value_or("none"),
            "output 'out': written 3 bytes before its start");
}

TEST_F(PluginTest, Hangs) {
  const auto start = std::chrono::steady_clock::now();
  const PluginReport report = plugin_.run(call("hang"), 0.2);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(report.status, PluginStatus::kHung);
  EXPECT_EQ(report.message, "the plugin ran at the time limit of 0.2 s");
  EXPECT_GE(took.count(), 0.2);
}

TEST_F(PluginTest, HangsInAChild) {
  for (const char* const stage : {"hang_in_child", "hang_in_session"}) {
    const PluginReport report = plugin_.run(call(stage), 0.2);
    EXPECT_EQ(report.status, PluginStatus::kHung);
    EXPECT_EQ(report.message, "the plugin ran at the time limit of 0.2 s") << stage;
  }
}

TEST_F(PluginTest, WaitsForALongerTimeThanItComputes) {
  PluginReport report = plugin_.run(call("nap"), 0.2);  // half a second
  EXPECT_EQ(report.status, PluginStatus::kDone) << report.message;
  report = plugin_.run(call("sleep"), 0.1);
  EXPECT_EQ(report.status, PluginStatus::kHung);
  EXPECT_EQ(report.message, "the plugin did nothing for 0.3 s, the time limit is 0.1 s");
}

/// Until a process is gone, or no more than an entry that its parent has not read.
void wait_for_death(int process) {
  for (char state = ' '; state != 'Z';) {
    std::ifstream stream(fmt::format("/proc/{}/stat", process));
    std::string text;
    if (!std::getline(stream, text)) return;
    state = text.at(text.rfind(')') + 2);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

TEST_F(PluginTest, ItsChildrenDieWithIt) {
  int child = std::stoi(plugin_.run(call("leave_child"), 10).message);
  expect_crash("abort", "the plugin died of signal 6");
  wait_for_death(child);
  {
    Plugin other(kSample);
    child = std::stoi(other.run(call("leave_child"), 10).message);
  }
  wait_for_death(child);
  // A child that keeps the plugin's end of the socket open hides nothing.
  expect_crash("crash_before_child", "the plugin died of signal 6");
}

// A session of its own, and a parent that is gone, take no process out of reach.
TEST_F(PluginTest, ItsDaemonsDieWithIt) {
  const auto leave_daemon = [&](Plugin& plugin) {
    return std::stoi(plugin.run(call("leave_daemon"), 10).message);
  };
  for (const char* const end : {"abort", "kill_parent"}) {
    const int daemon = leave_daemon(plugin_);
    expect_crash(end, "the plugin died of signal ");
    wait_for_death(daemon);
  }
  int daemon = 0;
  {
    Plugin other(kSample);
    daemon = leave_daemon(other);
  }
  wait_for_death(daemon);
  Plugin orphaned(kSample);
  daemon = leave_daemon(orphaned);
  EXPECT_EQ(orphaned.run(call("kill_supervisor"), 10).status, PluginStatus::kCrashed);
  wait_for_death(daemon);
}

TEST_F(PluginTest, KillsItsParent) {
  expect_crash("kill_parent", "the plugin died of signal 9");
}

TEST(PluginProcesses, WithoutASupervisorEveryRunIsACrash) {
  Plugin plugin(kSample);
  PluginCall call;
  call.contract = "mono";
  for (const char* const stage : {"kill_supervisor", "nothing"}) {
    call.stage = stage;
    const PluginReport report = plugin.run(call, 10);
    EXPECT_EQ(report.status, PluginStatus::kCrashed);
    EXPECT_EQ(report.message,
              "the plugin has killed the processes around it, and cannot be run again");
  }
  EXPECT_EQ(plugin.offers("nothing", 10).status, PluginStatus::kCrashed);
}

TEST(PluginProcesses, WhatItPrintsGoesToStandardErrorInWholeLines) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  {
    Plugin plugin(kSample);
    PluginCall call;
    call.stage = "print";
    call.contract = "mono";
    EXPECT_EQ(plugin.run(call, 10).status, PluginStatus::kDone);
  }
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "to output and error\n");
}

TEST_F(PluginTest, LargeCasesGrowTheSharedFile) {
  std::vector<std::byte> large(std::size_t{9} << 20);
  for (std::size_t i = 0; i < large.size(); ++i) large[i] = static_cast<std::byte>(i * 7 >> 3);
  PluginCall asked = call("nothing");
  asked.outputs.push_back(bytes("large", large));
  const PluginReport report = plugin_.run(asked, 10);
  EXPECT_EQ(report.status, PluginStatus::kDone) << report.message;
  ASSERT_EQ(report.outputs.size(), 2U);
  EXPECT_TRUE(report.outputs[1] == large);
}

std::string reason_of(const std::string& path) {
  try {
    const Plugin plugin(path);
  } catch (const Unavailable& unavailable) {
    return unavailable.message;
  }
  return "loaded";
}

TEST(PluginLoading, SaysWhyItCannot) {
  const auto expect_reason = [](const std::string& path, const std::string& part) {
    const std::string reason = reason_of(path);
    EXPECT_EQ(reason.find("plugin '" + path + "': "), 0U) << reason;
    EXPECT_NE(reason.find(part), std::string::npos) << reason;
  };
  expect_reason("/nowhere/plugin.so", "No such file");
  expect_reason(MONOREF_OLD_PLUGIN, "the plugin speaks version 99 of the interface, must be 1");
  expect_reason(MONOREF_MUTE_PLUGIN, "exports no monoref_plugin_entry");
}

TEST(PluginLoading, RefusesWrongCalls) {
  Plugin plugin(kSample);
  const std::vector<std::byte> image(8);
  PluginCall call;
  call.stage = "nothing";
  call.inputs = {{"x", "uint8", 1, {9}, {1}, {{0, 9}}, image}};
  EXPECT_THROW(plugin.run(call, 1), std::invalid_argument);
  call.inputs = {{"x", "uint8", 1, {8}, {}, {{0, 8}}, image}};
  EXPECT_THROW(plugin.run(call, 1), std::invalid_argument);
}

}  // namespace
}  // namespace monoref::device
