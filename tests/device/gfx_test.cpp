// The gfx942 and gfx950 backends: the same behaviour as everywhere, and what they say of faults.
#include <gtest/gtest.h>

#include <filesystem>

#include "device/backends/code_objects.hpp"
#include "device/backends/gfx/backend.hpp"
#include "device/backends/gfx/object.hpp"
#include "tests/device/behaviour.hpp"
#include "tests/device/launcher.hpp"

namespace monoref::device {
namespace {

class GfxBehaviour : public testing::TestWithParam<std::tuple<const char*, BehaviourTest>> {};

/// Whoever runs next, and whatever is in registers and shared memory before anybody writes there.
TEST_P(GfxBehaviour, IsRightUnderEverySchedule) {
  const auto& [chip, test] = GetParam();
  for (const gfx::Manner& manner :
       {gfx::Manner{gfx::Schedule::kRunAhead, 1}, gfx::Manner{gfx::Schedule::kRoundRobin, 2},
        gfx::Manner{gfx::Schedule::kRandom, 3}})
    test.run(*make_gfx_backend(chip, manner));
}

INSTANTIATE_TEST_SUITE_P(Gfx, GfxBehaviour,
                         testing::Combine(testing::Values("gfx942", "gfx950"),
                                          testing::ValuesIn(behaviour_tests())),
                         [](const auto& parameter) {
                           return std::string(std::get<0>(parameter.param)) + "_" +
                                  std::get<1>(parameter.param).name;
                         });

class Gfx : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Backend> backend = make_gfx_backend(GetParam());

  void expect_crash(const RunReport& report, std::initializer_list<std::string_view> parts) {
    EXPECT_EQ(report.status, RunStatus::kCrashed);
    for (const std::string_view part : parts)
      EXPECT_NE(report.message.find(part), std::string::npos) << part << " in " << report.message;
  }
  /// The backend goes on after a verdict.
  void expect_usable() {
    const std::vector<std::uint8_t> bytes(8, 3);
    backend->place(std::vector{buffer("a", bytes)});
    const RunReport report = run(*backend, "monoref_test_store", row(1, 1),
                                 pointer<std::uint8_t>(*backend, 0), std::int64_t{0}, 24U);
    EXPECT_EQ(report.status, RunStatus::kOk) << report.message;
    EXPECT_EQ(content<std::uint8_t>(*backend, 0, 8)[0], 24);
  }
};

TEST_P(Gfx, KnowsEveryInstructionOfItsCodeObjects) {
  std::size_t instructions = 0;
  for (const std::filesystem::path& file : code_objects_of(GetParam())) {
    gfx::CodeObject object(file);
    EXPECT_EQ(object.chip, GetParam());
    instructions += object.program().code.size();
    EXPECT_EQ(gfx::unknown_mnemonics(object.program()), std::vector<std::string>())
        << file.filename();
  }
  EXPECT_GT(instructions, 10'000U);
}

/// Objects of the kernels that are shipped, not those of tests.
std::vector<std::unique_ptr<gfx::CodeObject>> shipped_objects(std::string_view chip) {
  std::vector<std::unique_ptr<gfx::CodeObject>> objects;
  for (const std::filesystem::path& file : code_objects_of(chip)) {
    auto object = std::make_unique<gfx::CodeObject>(file);
    if (!object->kernels.empty() && !object->kernels.front().name.starts_with("monoref_test_"))
      objects.push_back(std::move(object));
  }
  return objects;
}

/// FLAT instructions count as accesses of shared memory too, so that each wait is for everything;
/// and what spills to scratch was meant to be in registers.
TEST_P(Gfx, ShippedKernelsNameTheirMemoryAndSpillNothing) {
  for (const auto& object : shipped_objects(GetParam())) {
    for (const gfx::Kernel& kernel : object->kernels)
      EXPECT_EQ(kernel.private_bytes, 0U) << kernel.name;
    for (const std::string& text : object->program().text)
      EXPECT_FALSE(text.starts_with("flat_") || text.starts_with("scratch_"))
          << object->kernels.front().name << ": " << text;
  }
}

/// What the kernels' arithmetic relies on is in their descriptors, not in their instructions.
TEST_P(Gfx, DescriptorsKeepSubnormalsAndRoundToNearest) {
  std::size_t kernels = 0;
  for (const auto& object : shipped_objects(GetParam()))
    for (const gfx::Kernel& kernel : object->kernels) {
      ++kernels;
      EXPECT_EQ(kernel.mode.denorm32, 3) << kernel.name;
      EXPECT_EQ(kernel.mode.denorm64, 3) << kernel.name;
      EXPECT_EQ(kernel.mode.round32, 0) << kernel.name;
      EXPECT_EQ(kernel.mode.round64, 0) << kernel.name;
      EXPECT_TRUE(kernel.mode.ieee) << kernel.name;
      EXPECT_TRUE(kernel.mode.dx10_clamp) << kernel.name;
      EXPECT_FALSE(kernel.mode.fp16_overflow) << kernel.name;
    }
  EXPECT_GT(kernels, 40U);
}

TEST_P(Gfx, ReadOutsideTheBuffers) {
  const std::vector<std::uint8_t> bytes(100, 1);
  const std::vector<std::uint8_t> out(1, 0);
  struct Try {
    std::int64_t index;
    const char* place;
  };
  for (const auto& [index, place] :
       {Try{100, "byte 100 of buffer 'from', whose run of bytes has 100"},
        Try{-1, "1 bytes before buffer 'from'"},
        Try{std::int64_t{1} << 40, "which is near no buffer"}}) {
    backend->place(std::vector{buffer("from", bytes), buffer("out", out)});
    const RunReport report =
        run(*backend, "monoref_test_load", row(1, 64), pointer<const std::uint8_t>(*backend, 0),
            index, pointer<std::uint8_t>(*backend, 1));
    expect_crash(report, {"kernel 'monoref_test_load': block [0, 0, 0], wave 0 (exec 0x1), at "
                          "offset 0x",
                          "global_load_ubyte", "lane 0: a read of 1 bytes at 0x", place});
  }
  expect_usable();
}

TEST_P(Gfx, WriteOutsideTheDevice) {
  const std::vector<std::uint8_t> bytes(8, 3);
  std::uint8_t* const null = nullptr;
  backend->place(std::vector{buffer("a", bytes)});
  const RunReport report =
      run(*backend, "monoref_test_store", row(1, 1), null, std::int64_t{8}, 1U);
  expect_crash(report, {"'global_store_byte ",
                        "lane 0: a write of 1 bytes at 0x8, which is near "
                        "no buffer"});
  expect_usable();
}

/// The kernel puts 4 bytes a thread into dynamic shared memory and is given half of that.
TEST_P(Gfx, SharedMemoryOverrun) {
  const std::vector<std::uint32_t> sums(128);
  backend->place(std::vector{buffer("sums", sums)});
  const RunReport report = run(*backend, "monoref_test_barrier_after_exit", row(1, 128, 256), 128U,
                               pointer<std::uint32_t>(*backend, 0));
  expect_crash(report, {"wave 1 ", "'ds_write_b32 ",
                        "lane 0: a write of 4 bytes of shared memory "
                        "at byte 256, of which there are 256"});
  expect_usable();
}

TEST_P(Gfx, SharedMemoryThatTheChipHasNot) {
  const std::vector<std::uint32_t> sums(128);
  backend->place(std::vector{buffer("sums", sums)});
  const bool fits = std::string(GetParam()) == "gfx950";
  const RunReport report = run(*backend, "monoref_test_barrier_after_exit", row(1, 128, 100U << 10),
                               128U, pointer<std::uint32_t>(*backend, 0));
  EXPECT_EQ(report.status, fits ? RunStatus::kOk : RunStatus::kCrashed);
  if (!fits)
    expect_crash(report, {"a block needs 102400 bytes of shared memory, gfx942 has 65536"});
}

TEST_P(Gfx, EndlessLoop) {
  for (const char* const kernel : {"monoref_test_spin", "monoref_test_spin_relaxed"}) {
    const std::vector<std::uint32_t> zero(1);
    backend->place(std::vector{buffer("flag", zero)});
    backend->set_time_limit(0.1);
    const RunReport report =
        run(*backend, kernel, row(1, 64), pointer<const std::uint32_t>(*backend, 0));
    backend->set_time_limit(10);
    EXPECT_EQ(report.status, RunStatus::kHung);
    EXPECT_NE(report.message.find(std::string("kernel '") + kernel +
                                  "' still runs after 0.1 s: block [0, 0, 0], wave 0"),
              std::string::npos)
        << report.message;
    expect_usable();
  }
}

INSTANTIATE_TEST_SUITE_P(Chips, Gfx, testing::Values("gfx942", "gfx950"),
                         [](const auto& parameter) { return std::string(parameter.param); });

TEST(GfxBackend, SaysWhereCodeObjectsAreMissing) {
  ASSERT_EQ(setenv("MONOREF_CODE_OBJECTS", "/nowhere", 1), 0);
  try {
    make_gfx_backend("gfx950");
    ADD_FAILURE() << "made a backend";
  } catch (const Unavailable& unavailable) {
    EXPECT_EQ(unavailable.message, "gfx950 backend: no code objects *.gfx950.co in /nowhere");
  }
  unsetenv("MONOREF_CODE_OBJECTS");
}

}  // namespace
}  // namespace monoref::device
