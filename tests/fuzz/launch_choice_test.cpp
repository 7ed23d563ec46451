// Grids and base addresses as dimensions: what they change, and what they leave alone.
#include "fuzz/launch_choice.hpp"

#include <gtest/gtest.h>

#include <set>

#include "device/launch/o_projection.hpp"
#include "device/launch/qkv_projection.hpp"
#include "device/launch/token_rows.hpp"
#include "fuzz/generator.hpp"
#include "fuzz/runner.hpp"

namespace monoref {
namespace {

using device::launch::Shape;

/// A host backend that keeps the grids of what it launches, and the offsets of buffers.
class Watching : public device::Backend {
 public:
  std::vector<device::Grid> grids;
  std::vector<std::size_t> offsets;

  std::string name() const override { return "watching"; }
  int wave() const override { return host_->wave(); }
  void place(std::span<const device::BufferRequest> buffers) override {
    host_->place(buffers);
    offsets.clear();
    for (std::size_t i = 0; i < buffers.size(); ++i)
      offsets.push_back(reinterpret_cast<std::uintptr_t>(host_->address(i)) % 16);
  }
  void* address(std::size_t index, int device) const override {
    return host_->address(index, device);
  }
  void write(std::size_t index, std::span<const std::byte> image) override {
    host_->write(index, image);
  }
  void launch(std::string_view kernel, const device::Grid& grid,
              std::span<const device::KernelArgument> arguments, int device) override {
    grids.push_back(grid);
    host_->launch(kernel, grid, arguments, device);
  }
  device::RunReport finish() override { return host_->finish(); }
  std::optional<std::string> damaged_guard() override { return host_->damaged_guard(); }
  void read(std::size_t index, std::span<std::byte> image) override { host_->read(index, image); }

 private:
  std::unique_ptr<device::Backend> host_ = device::make_host_backend(64);
};

/// Runs a line's case as the line says; the backend that it ran on.
std::pair<Verdict, Watching*> judged(const std::string& text, std::unique_ptr<Runner>& keep) {
  auto backend = std::make_unique<Watching>();
  Watching* const watching = backend.get();
  keep = std::make_unique<KernelRunner>(std::move(backend));
  const Case item = build_case(parse_line(text));
  const Stage& stage = find_stage(item.stage);
  const CaseResult result =
      judge_case(stage, item, {.runners = {keep.get()}, .launch = launch_choice(stage, item.line)});
  return {result.verdict(), watching};
}

TEST(LaunchChoice, ALineThatDoesNotNameItMeansTheDefault) {
  const Stage& stage = find_stage("token_rows");
  EXPECT_EQ(launch_choice(stage, "stage=token_rows;seed=4;q_len=3"), LaunchChoice{});
  EXPECT_EQ(launch_choice(stage, ""), LaunchChoice{});
  EXPECT_EQ(launch_choice(stage, "stage=token_rows;blocks_x=2;block_waves=3;bases=9"),
            (LaunchChoice{{.blocks_x = 2, .blocks_y = 0, .waves = 3}, 9}));
}

TEST(LaunchChoice, LeavesTheContentOfEveryCaseAlone) {
  for (const Stage& stage : all_stages()) {
    const Draw draw = draw_case(stage, 77, 3, std::nullopt);
    const Case one = build_case(stage, draw.params, draw.contract, draw.seed);
    const Case other =
        build_case(stage, with_default_launch(draw.params), draw.contract, draw.seed);
    ASSERT_EQ(one.inputs.size(), other.inputs.size());
    for (std::size_t i = 0; i < one.inputs.size(); ++i) {
      EXPECT_EQ(one.inputs[i].tensor.layout(), other.inputs[i].tensor.layout()) << one.line;
      EXPECT_EQ(one.inputs[i].tensor.image(), other.inputs[i].tensor.image()) << one.line;
    }
  }
}

TEST(LaunchChoice, ReachesKernelsAndBuffers) {
  const std::string line = "stage=page16_rebase;seed=4;rows=5;width=9";
  std::unique_ptr<Runner> runner;
  const auto [plain, by_default] = judged(line, runner);
  EXPECT_EQ(plain, Verdict::kExact);
  EXPECT_EQ(by_default->grids.front().blocks_x, 5u);
  for (const std::size_t offset : by_default->offsets) EXPECT_EQ(offset, 0u);
  std::set<std::size_t> offsets;
  for (int bases = 1; bases <= 15; ++bases) {
    const auto [verdict, chosen] = judged(
        line + ";blocks_x=2;blocks_y=3;block_waves=4;bases=" + std::to_string(bases), runner);
    EXPECT_EQ(verdict, Verdict::kExact);
    EXPECT_EQ(chosen->grids.front().blocks_x, 2u);
    EXPECT_EQ(chosen->grids.front().blocks_y, 3u);
    EXPECT_EQ(chosen->grids.front().threads_x, 4u * 64u);
    offsets.insert(chosen->offsets.begin(), chosen->offsets.end());
  }
  EXPECT_EQ(offsets, (std::set<std::size_t>{0, 4, 8, 12})) << "tables of int32";
}

TEST(LaunchChoice, LeavesBuffersOn16WhoseKernelsHaveNoOtherPath) {
  std::unique_ptr<Runner> runner;
  for (int bases = 1; bases < 40; ++bases) {
    const auto [verdict, backend] =
        judged("stage=o_projection;seed=4;bases=" + std::to_string(bases), runner);
    EXPECT_EQ(verdict, Verdict::kExact);
    EXPECT_EQ(backend->offsets.at(2), 0u) << "weight, bases " << bases;
  }
}

TEST(LaunchChoice, OffsetsAreWholeElementsAndHalfOfThemNone) {
  for (const std::size_t size : {1u, 2u, 4u, 8u}) {
    int none = 0;
    for (std::int64_t bases = 1; bases <= 1000; ++bases) {
      const std::size_t offset = base_offset(bases, 3, size);
      EXPECT_EQ(offset % size, 0u);
      EXPECT_LT(offset, 16u);
      if (offset == 0) ++none;
    }
    EXPECT_GT(none, 400);
    EXPECT_LT(none, 850);
    EXPECT_EQ(base_offset(0, 3, size), 0u);
  }
}

TEST(LaunchShape, IsTheNearestThatAKernelTakes) {
  const device::launch::QkvProjection qkv{.x8 = nullptr,
                                          .x8_row_stride = 0,
                                          .x_scale = nullptr,
                                          .weights = nullptr,
                                          .w_scale = nullptr,
                                          .out = nullptr,
                                          .out_row_stride = 0,
                                          .tokens = 20,
                                          .rows = 64,
                                          .hidden = 1024,
                                          .encoding = 0};
  const auto threads = [&](std::uint32_t waves, int wave) {
    return grid_of(qkv, wave, Shape{.waves = waves}).threads_x;
  };
  EXPECT_EQ(threads(0, 64), 128u);
  EXPECT_EQ(threads(1, 64), 64u);
  EXPECT_EQ(threads(3, 32), 96u);
  EXPECT_EQ(threads(16, 64), 128u);
  EXPECT_EQ(grid_of(qkv, 64).blocks_x, 4u);
  EXPECT_EQ(grid_of(qkv, 64).blocks_y, 3u);
  EXPECT_EQ(grid_of(qkv, 64, Shape{.blocks_x = 3, .blocks_y = 2}).blocks_y, 2u);
  EXPECT_EQ(grid_of(qkv, 64, Shape{.blocks_y = 2}).blocks_z, 1u) << "it goes over nothing in z";
  EXPECT_TRUE(qkv.legal(64).has(grid_of(qkv, 64, Shape{7, 9, 2})));
}

TEST(LaunchShape, BringsTheSharedMemoryOfItsThreads) {
  device::launch::OProjection o{.x8 = nullptr,
                                .x8_row_stride = 0,
                                .x_scale = nullptr,
                                .weights = nullptr,
                                .w_scale = nullptr,
                                .out = nullptr,
                                .out_row_stride = 0,
                                .tokens = 13,
                                .rows = 64,
                                .width = 512,
                                .encoding = 0};
  EXPECT_EQ(grid_of(o, 64).shared_bytes, 2112u * 16);
  EXPECT_EQ(grid_of(o, 64, Shape{.waves = 1}).shared_bytes, 2112u * 8);
  o.tokens = 3;
  EXPECT_EQ(grid_of(o, 64).shared_bytes, 2112u * 4);
}

TEST(LaunchArguments, RefuseSizesAndAddressesThatAKernelCannotTake) {
  const auto backend = device::make_host_backend(64);
  device::launch::TokenRows rows{.block_table = nullptr,
                                 .table_row_stride = 0,
                                 .seq_lens = nullptr,
                                 .seq_lens_stride = 0,
                                 .rows_table = nullptr,
                                 .rows_table_stride = 0,
                                 .rows_lens = nullptr,
                                 .rows = 0,
                                 .length_rows = 0,
                                 .width = std::int64_t{1} << 31,
                                 .q_len = 1};
  EXPECT_THROW(enqueue(rows, *backend), std::invalid_argument);
  rows.width = 0;
  EXPECT_NO_THROW(enqueue(rows, *backend));
  EXPECT_EQ(backend->finish().status, device::RunStatus::kOk);
  alignas(16) const int four[4] = {};
  EXPECT_NO_THROW(argument(device::launch::On16{four}));
  EXPECT_THROW(argument(device::launch::On16{four + 2}), std::invalid_argument);
}

}  // namespace
}  // namespace monoref
