// The AMD code objects of every kernel: that they exist for both chips and fit them.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <sstream>
#include <string>

#include "device/backend.hpp"

namespace monoref::device {
namespace {

/// Numbers of one kernel's metadata by key.
using Metadata = std::map<std::string, std::int64_t>;

std::string output_of(const std::string& command) {
  // NOLINTNEXTLINE(bugprone-command-processor): the command is the build's own.
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string text;
  std::array<char, 4096> part{};
  while (pipe != nullptr && std::fgets(part.data(), part.size(), pipe.get()) != nullptr)
    text += part.data();
  return text;
}

/// The kernels of a code object. In its notes every kernel is a list item indented by two, its own
/// keys are indented by four, and its arguments' keys deeper.
std::map<std::string, Metadata> kernels_of(const std::filesystem::path& code_object) {
  std::istringstream notes(
      output_of(std::string(MONOREF_READELF) + " --notes '" + code_object.string() + "'"));
  std::map<std::string, Metadata> kernels;
  Metadata current;
  std::string name;
  const auto finish = [&] {
    if (!name.empty()) kernels[name] = current;
    current.clear();
    name.clear();
  };
  for (std::string line; std::getline(notes, line);) {
    if (line.rfind("  - ", 0) == 0) {
      finish();
      line.replace(2, 2, "  ");
    }
    std::string key;
    std::string value;
    if (line.rfind("    .", 0) != 0 || !(std::istringstream(line) >> key >> value)) continue;
    if (key == ".name:")
      name = value;
    else if (value.find_first_not_of("0123456789") == value.npos)
      current[key] = std::stoll(value);
  }
  finish();
  return kernels;
}

struct Chip {
  const char* name;
  std::int64_t shared_bytes;
};

class CodeObjects : public testing::TestWithParam<Chip> {};

TEST_P(CodeObjects, HoldEveryKernelWithinTheChipsLimits) {
  const auto& [chip, shared_bytes] = GetParam();
  std::map<std::string, Metadata> kernels;
  const std::string suffix = std::string(".") + chip + ".co";
  for (const auto& entry : std::filesystem::directory_iterator(MONOREF_CODE_OBJECT_DIRECTORY))
    if (entry.path().string().ends_with(suffix)) kernels.merge(kernels_of(entry.path()));
  ASSERT_FALSE(kernel_names().empty());
  for (const std::string_view name : kernel_names()) {
    const auto found = kernels.find(std::string(name));
    EXPECT_NE(found, kernels.end()) << name << " is in no code object for " << chip;
    if (found == kernels.end()) continue;
    const Metadata& metadata = found->second;
    EXPECT_EQ(metadata.at(".wavefront_size:"), 64) << name;
    EXPECT_LE(metadata.at(".group_segment_fixed_size:"), shared_bytes) << name;
    EXPECT_LE(metadata.at(".vgpr_count:"), 512) << name;
    EXPECT_EQ(metadata.at(".vgpr_spill_count:"), 0) << name;
    EXPECT_EQ(metadata.at(".sgpr_spill_count:"), 0) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Amd, CodeObjects,
                         testing::Values(Chip{"gfx942", std::int64_t{64} << 10},
                                         Chip{"gfx950", std::int64_t{160} << 10}),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

}  // namespace
}  // namespace monoref::device
