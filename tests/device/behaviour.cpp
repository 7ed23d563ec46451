#include "tests/device/behaviour.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "tests/device/launcher.hpp"

namespace monoref::device {
namespace {

void expect_ok(const RunReport& report) {
  EXPECT_EQ(report.status, RunStatus::kOk) << report.message;
}

struct Contribution {
  std::int32_t factor, offset;
};

void two_level_sum(Backend& backend) {
  const Contribution contribution{3, -100};
  for (const std::uint32_t threads : {64U, 128U, 512U, 1024U}) {
    const std::uint32_t blocks = 7;
    const std::vector<std::int32_t> poison(blocks, -1);
    backend.place(std::vector{buffer("sums", poison)});
    expect_ok(run(backend, "monoref_test_two_level_sum", row(blocks, threads), contribution,
                  pointer<std::int32_t>(backend, 0)));
    std::vector<std::int32_t> sums(blocks);
    for (std::uint32_t i = 0; i < blocks * threads; ++i)
      sums[i / threads] += 3 * static_cast<std::int32_t>(i) - 100;
    EXPECT_EQ(content<std::int32_t>(backend, 0, blocks), sums) << threads << " threads";
    EXPECT_EQ(backend.damaged_guard(), std::nullopt);
  }
}

void three_dimensional_block(Backend& backend) {
  const Contribution contribution{1, 0};
  const std::vector<std::int32_t> poison(1, -1);
  backend.place(std::vector{buffer("sums", poison)});
  Grid grid = row(1, 8);
  grid.threads_y = 4;
  grid.threads_z = 6;
  expect_ok(run(backend, "monoref_test_two_level_sum", grid, contribution,
                pointer<std::int32_t>(backend, 0)));
  EXPECT_EQ(content<std::int32_t>(backend, 0, 1)[0], 192 * 191 / 2);
}

void coordinates(Backend& backend) {
  Grid grid;
  grid.blocks_x = 3, grid.blocks_y = 2, grid.blocks_z = 4;
  grid.threads_x = 5, grid.threads_y = 3, grid.threads_z = 2;
  const std::size_t blocks = 24;
  const std::size_t threads = 30;
  const std::vector<std::uint32_t> poison(blocks * threads * 12, 0xdddddddd);
  backend.place(std::vector{buffer("coordinates", poison)});
  expect_ok(run(backend, "monoref_test_coordinates", grid, pointer<std::uint32_t>(backend, 0)));
  std::vector<std::uint32_t> expected;
  for (std::uint32_t block = 0; block < blocks; ++block)
    for (std::uint32_t thread = 0; thread < threads; ++thread)
      for (const std::uint32_t value : {thread % 5, thread / 5 % 3, thread / 15, block % 3,
                                        block / 3 % 2, block / 6, 5U, 3U, 2U, 3U, 2U, 4U})
        expected.push_back(value);
  EXPECT_EQ(content<std::uint32_t>(backend, 0, expected.size()), expected);
}

void lane_moves(Backend& backend) {
  const int wave = backend.wave();
  const auto lanes = static_cast<std::size_t>(wave);
  std::vector<std::int32_t> values(lanes);
  for (int i = 0; i < wave; ++i) values[static_cast<std::size_t>(i)] = i * i % 37 - 11;
  const std::vector<std::int32_t> poison(6 * lanes, -777);
  const std::vector<std::uint64_t> no_ballots(3, 99);
  backend.place(std::vector{buffer("values", values), buffer("moved", poison),
                            buffer("ballots", no_ballots)});
  expect_ok(run(backend, "monoref_test_lane_moves", row(1, static_cast<std::uint32_t>(wave)),
                pointer<const std::int32_t>(backend, 0), pointer<std::int32_t>(backend, 1),
                pointer<std::uint64_t>(backend, 2)));
  std::vector<std::int32_t> expected;
  const auto each = [&](auto value_of) {
    for (int lane = 0; lane < wave; ++lane) expected.push_back(value_of(lane));
  };
  const auto at = [&](int lane) { return values[static_cast<std::size_t>(lane)]; };
  each([&](int lane) { return at(wave - 1 - lane); });
  each([&](int lane) { return at(lane ^ 3); });
  each([&](int lane) { return lane < 2 ? at(lane) : at(lane - 2); });
  each([&](int lane) { return lane + 5 >= wave ? at(lane) : at(lane + 5); });
  each([&](int lane) { return at(lane ^ 16); });
  std::uint64_t odd = 0;
  each([&](int lane) {
    const int below = std::popcount(odd);
    if (at(lane) % 2 != 0) odd |= std::uint64_t{1} << lane;
    return below;
  });
  EXPECT_EQ(content<std::int32_t>(backend, 1, 6 * lanes), expected);
  EXPECT_EQ(content<std::uint64_t>(backend, 2, 3), (std::vector<std::uint64_t>{odd, 0, 1}));
}

void barrier_after_exit(Backend& backend) {
  for (const std::uint32_t keep : {1U, 63U, 64U, 65U, 300U}) {
    const std::vector<std::uint32_t> poison(320, 0xdddddddd);
    backend.place(std::vector{buffer("sums", poison)});
    expect_ok(run(backend, "monoref_test_barrier_after_exit", row(1, 320, 320 * 4), keep,
                  pointer<std::uint32_t>(backend, 0)));
    std::vector<std::uint32_t> expected = poison;
    std::fill_n(expected.begin(), keep, keep * (keep - 1) / 2);
    EXPECT_EQ(content<std::uint32_t>(backend, 0, 320), expected) << "keep " << keep;
  }
}

void atomics_under_contention(Backend& backend) {
  const std::uint32_t blocks = 64;
  const std::uint32_t threads = 256;
  const std::uint32_t all = blocks * threads;
  const std::vector<std::uint32_t> counts(2);
  const std::vector<std::uint64_t> wide(1);
  const std::vector<float> half(1);
  const std::vector<std::int32_t> extremes{5, 5};
  const std::vector<std::uint32_t> tickets(all, 0xdddddddd);
  backend.place(std::vector{buffer("counts", counts), buffer("wide", wide), buffer("half", half),
                            buffer("extremes", extremes), buffer("tickets", tickets)});
  expect_ok(run(backend, "monoref_test_atomics", row(blocks, threads),
                pointer<std::uint32_t>(backend, 0), pointer<std::uint64_t>(backend, 1),
                pointer<float>(backend, 2), pointer<std::int32_t>(backend, 3),
                pointer<std::uint32_t>(backend, 4)));
  EXPECT_EQ(content<std::uint32_t>(backend, 0, 2), (std::vector<std::uint32_t>{all, all}));
  EXPECT_EQ(content<std::uint64_t>(backend, 1, 1)[0], std::uint64_t{all} << 32);
  // Every partial sum is a multiple of one half below 2^23, hence exact in any order.
  EXPECT_EQ(content<float>(backend, 2, 1)[0], static_cast<float>(all) / 2);
  EXPECT_EQ(content<std::int32_t>(backend, 3, 2),
            (std::vector<std::int32_t>{1 - static_cast<std::int32_t>(all),
                                       static_cast<std::int32_t>(all) - 1}));
  std::vector<std::uint32_t> drawn = content<std::uint32_t>(backend, 4, all);
  std::sort(drawn.begin(), drawn.end());
  std::vector<std::uint32_t> every(all);
  std::iota(every.begin(), every.end(), 0U);
  EXPECT_EQ(drawn, every);
}

void local_array(Backend& backend) {
  const std::vector<std::uint32_t> poison(256, 0xdddddddd);
  backend.place(std::vector{buffer("sums", poison)});
  expect_ok(
      run(backend, "monoref_test_local_array", row(1, 256), pointer<std::uint32_t>(backend, 0)));
  // i < 256 permutes the numbers below 4096, so that every thread adds the same numbers.
  EXPECT_EQ(content<std::uint32_t>(backend, 0, 256),
            std::vector<std::uint32_t>(256, 4096 * 4095 / 2));
}

void mailboxes(Backend& backend) {
  const std::uint32_t blocks = 24;
  const std::uint32_t laps = 5;
  const std::vector<std::uint32_t> boxes(blocks);
  const std::vector<std::uint64_t> token(1);
  const std::vector<std::uint64_t> received(blocks, 99);
  backend.place(std::vector{buffer("mailboxes", boxes), buffer("token", token),
                            buffer("received", received)});
  expect_ok(run(backend, "monoref_test_mailboxes", cooperative(blocks, 128), laps,
                pointer<std::uint32_t>(backend, 0), pointer<std::uint64_t>(backend, 1),
                pointer<std::uint64_t>(backend, 2)));
  const std::uint64_t lap = blocks * (blocks - 1) / 2;
  EXPECT_EQ(content<std::uint64_t>(backend, 1, 1)[0], laps * lap);
  std::vector<std::uint64_t> expected;
  for (std::uint64_t block = 0; block < blocks; ++block)
    expected.push_back((laps - 1) * lap + block * (block - 1) / 2);
  EXPECT_EQ(content<std::uint64_t>(backend, 2, blocks), expected);
}

void wait_in_block(Backend& backend) {
  const std::vector<std::uint32_t> zero(1);
  backend.place(std::vector{buffer("flag", zero), buffer("done", zero)});
  expect_ok(run(backend, "monoref_test_wait_in_block", row(1, 256),
                pointer<std::uint32_t>(backend, 0), pointer<std::uint32_t>(backend, 1)));
  EXPECT_EQ(content<std::uint32_t>(backend, 1, 1)[0], 1U);
}

/// Floats of all magnitudes: subnormals, edges of the range, and the sequence of a linear
/// congruence.
std::vector<float> varied_floats(std::size_t count, std::uint32_t seed) {
  std::vector<float> values{0.0F,      1.0F,        3.0F,   0x1p-149F, 0x1.8p-140F,
                            0x1p-126F, 0x1.fp+120F, 1e-20F, 7.0F,      0x1.fffffep-1F};
  while (values.size() < count) {
    seed = seed * 1664525U + 1013904223U;
    const auto bits = (seed >> 1) & 0x7fffffffU;
    if ((bits >> 23) != 0xff) values.push_back(std::bit_cast<float>(bits));
  }
  return values;
}

void arithmetic_is_ieee(Backend& backend) {
  const std::size_t count = 4096;
  const std::vector<float> x = varied_floats(count, 1);
  std::vector<float> y = varied_floats(count, 2);
  std::rotate(y.begin(), y.begin() + 3, y.end());
  const std::vector<std::uint32_t> poison(4 * count, 0xdddddddd);
  backend.place(std::vector{buffer("x", x), buffer("y", y), buffer("results", poison)});
  expect_ok(run(backend, "monoref_test_arithmetic", row(count / 256, 256),
                pointer<const float>(backend, 0), pointer<const float>(backend, 1),
                pointer<float>(backend, 2), static_cast<std::int64_t>(count)));
  const std::vector<std::uint32_t> got = content<std::uint32_t>(backend, 2, 4 * count);
  // Binary64 holds quotients, roots and products exactly enough that rounding again to binary32 is
  // right (2 * 24 + 2 <= 53), subnormal quotients aside, which x86 divides in binary32 itself.
  const auto matches = [](std::uint32_t bits, float expected) {
    return std::isnan(expected) ? std::isnan(std::bit_cast<float>(bits))
                                : bits == std::bit_cast<std::uint32_t>(expected);
  };
  for (std::size_t i = 0; i < count; ++i) {
    const float product = x[i] * y[i];
    EXPECT_TRUE(matches(got[i], x[i] / y[i])) << x[i] << " / " << y[i];
    EXPECT_TRUE(matches(got[count + i], std::sqrt(x[i]))) << "sqrt " << x[i];
    EXPECT_TRUE(matches(got[2 * count + i], std::fma(x[i], y[i], x[i]))) << x[i] << ", " << y[i];
    EXPECT_TRUE(matches(got[3 * count + i], product + x[i])) << x[i] << ", " << y[i];
  }
}

void wide_copies(Backend& backend) {
  std::vector<std::uint32_t> from(4 * 256);
  std::iota(from.begin(), from.end(), 7U);
  const std::vector<std::uint32_t> poison(from.size(), 0xdddddddd);
  backend.place(std::vector{buffer("from", from), buffer("to", poison)});
  expect_ok(run(backend, "monoref_test_copy16", row(1, 256),
                pointer<const std::uint32_t>(backend, 0), pointer<std::uint32_t>(backend, 1)));
  EXPECT_EQ(content<std::uint32_t>(backend, 1, from.size()), from);
  EXPECT_EQ(content<std::uint32_t>(backend, 0, from.size()), from);
}

/// A byte next to a buffer of 100 bytes, on either side, is a canary on every backend.
void writes_beside_a_buffer(Backend& backend) {
  const std::vector<std::uint8_t> bytes(100, 1);
  const std::vector<std::uint8_t> other(40, 2);
  struct Try {
    std::int64_t index;
    const char* message;
  };
  for (const auto& [index, message] :
       {Try{-1, "buffer 'first': written 1 bytes before its start"},
        Try{-256, "buffer 'first': written 256 bytes before its start"},
        Try{100, "buffer 'first': written 0 bytes past its end (100 bytes)"},
        Try{127, "buffer 'first': written 27 bytes past its end (100 bytes)"}}) {
    backend.place(std::vector{buffer("first", bytes, 128), buffer("second", other)});
    expect_ok(run(backend, "monoref_test_store", row(1, 64), pointer<std::uint8_t>(backend, 0),
                  index, 24U));
    EXPECT_EQ(backend.damaged_guard().value_or("none"), message);
    EXPECT_EQ(content<std::uint8_t>(backend, 0, 100), bytes);
  }
  backend.place(std::vector{buffer("first", bytes, 128), buffer("second", other)});
  expect_ok(run(backend, "monoref_test_store", row(1, 64), pointer<std::uint8_t>(backend, 0),
                std::int64_t{99}, 24U));
  EXPECT_EQ(backend.damaged_guard(), std::nullopt);
}

/// Two runs of a few bytes, 5 GiB apart, in one buffer.
void sparse_extents(Backend& backend) {
  const std::uint64_t far = (std::uint64_t{5} << 30) + 4;
  const std::vector<std::uint8_t> image{1, 2, 3, 4, 5, 6, 7};
  const std::vector<std::uint8_t> out(1, 0xdd);
  BufferRequest sparse{"cache", {{0, 4}, {far, 3}}, 64, std::as_bytes(std::span(image))};
  const auto place = [&] { backend.place(std::vector{sparse, buffer("out", out)}); };
  for (std::size_t i = 0; i < image.size(); ++i) {
    place();
    const std::int64_t index = static_cast<std::int64_t>(i < 4 ? i : far + i - 4);
    expect_ok(run(backend, "monoref_test_load", row(1, 64), pointer<const std::uint8_t>(backend, 0),
                  index, pointer<std::uint8_t>(backend, 1)));
    EXPECT_EQ(content<std::uint8_t>(backend, 1, 1)[0], image[i]);
  }
  place();
  expect_ok(run(backend, "monoref_test_store", row(1, 64), pointer<std::uint8_t>(backend, 0),
                static_cast<std::int64_t>(far) + 1, 24U));
  EXPECT_EQ(content<std::uint8_t>(backend, 0, 7),
            (std::vector<std::uint8_t>{1, 2, 3, 4, 5, 24, 7}));
  EXPECT_EQ(backend.damaged_guard(), std::nullopt);
  place();
  expect_ok(run(backend, "monoref_test_store", row(1, 64), pointer<std::uint8_t>(backend, 0),
                static_cast<std::int64_t>(far) - 1, 24U));
  EXPECT_EQ(backend.damaged_guard().value_or("none"),
            "buffer 'cache': written at byte 5368709123, between its extents");
}

void steps_through_one_buffer(Backend& backend) {
  const std::vector<std::uint8_t> first{10, 11, 12};
  const std::vector<std::uint8_t> second{20, 21, 22};
  const std::vector<std::uint8_t> out(1, 0xdd);
  backend.place(std::vector{buffer("bytes", first), buffer("out", out)});
  const auto load = [&] {
    expect_ok(run(backend, "monoref_test_load", row(1, 64), pointer<const std::uint8_t>(backend, 0),
                  std::int64_t{1}, pointer<std::uint8_t>(backend, 1)));
    return content<std::uint8_t>(backend, 1, 1)[0];
  };
  EXPECT_EQ(load(), 11);
  backend.write(0, std::as_bytes(std::span(second)));
  EXPECT_EQ(load(), 21);
  EXPECT_EQ(content<std::uint8_t>(backend, 0, 3), second);
}

void empty_buffers(Backend& backend) {
  const std::vector<std::uint8_t> none;
  const std::vector<std::uint8_t> bytes{1, 2};
  backend.place(std::vector{buffer("none", none), buffer("bytes", bytes)});
  expect_ok(run(backend, "monoref_test_store", row(1, 64), pointer<std::uint8_t>(backend, 1),
                std::int64_t{0}, 24U));
  EXPECT_EQ(content<std::uint8_t>(backend, 0, 0), none);
  EXPECT_EQ(content<std::uint8_t>(backend, 1, 2), (std::vector<std::uint8_t>{24, 2}));
  EXPECT_EQ(backend.damaged_guard(), std::nullopt);
}

std::string refusal_of(Backend& backend, std::string_view kernel, const Grid& grid,
                       std::span<const KernelArgument> arguments) {
  try {
    backend.launch(kernel, grid, arguments);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "launched";
}

void wrong_launches(Backend& backend) {
  const std::vector<std::uint8_t> bytes(1);
  backend.place(std::vector{buffer("bytes", bytes)});
  auto* const at = pointer<std::uint8_t>(backend, 0);
  const std::int64_t index = 0;
  const std::uint32_t value = 1;
  const std::vector<KernelArgument> right{argument(at), argument(index), argument(value)};
  const std::vector<KernelArgument> few{argument(at), argument(index)};
  const std::vector<KernelArgument> narrow{argument(at), argument(index, 4), argument(value)};
  const std::string_view store = "monoref_test_store";
  EXPECT_EQ(refusal_of(backend, store, row(1, 64), few),
            "launch: 'monoref_test_store' is given 2 arguments and has 3");
  EXPECT_EQ(refusal_of(backend, store, row(1, 64), narrow),
            "launch: argument 1 of 'monoref_test_store' has 4 bytes, must be 8");
  EXPECT_EQ(refusal_of(backend, store, row(1, 65), right),
            "launch: a block of 'monoref_test_store' has 65 threads, limit 64");
  EXPECT_EQ(refusal_of(backend, store, row(0, 64), right),
            "launch: blocks_x is 0, limits 1 and 2147483647");
  EXPECT_EQ(refusal_of(backend, store, row(1, 64, 160 * 1024 + 1), right),
            "launch: shared_bytes is 163841, limit 163840");
  EXPECT_NE(refusal_of(backend, "monoref_no_such", row(1, 64), right)
                .find("launch: there is no kernel 'monoref_no_such'"),
            std::string::npos);
  expect_ok(backend.finish());
  EXPECT_EQ(content<std::uint8_t>(backend, 0, 1), bytes);
}

constexpr BehaviourTest kTests[] = {
    {"TwoLevelSum", two_level_sum},
    {"ThreeDimensionalBlock", three_dimensional_block},
    {"Coordinates", coordinates},
    {"LaneMoves", lane_moves},
    {"BarrierAfterExit", barrier_after_exit},
    {"AtomicsUnderContention", atomics_under_contention},
    {"LocalArray", local_array},
    {"Mailboxes", mailboxes},
    {"WaitInBlock", wait_in_block},
    {"ArithmeticIsIeee", arithmetic_is_ieee},
    {"WideCopies", wide_copies},
    {"WritesBesideABuffer", writes_beside_a_buffer},
    {"SparseExtents", sparse_extents},
    {"StepsThroughOneBuffer", steps_through_one_buffer},
    {"EmptyBuffers", empty_buffers},
    {"WrongLaunches", wrong_launches},
};

}  // namespace

std::span<const BehaviourTest> behaviour_tests() {
  return kTests;
}

}  // namespace monoref::device
