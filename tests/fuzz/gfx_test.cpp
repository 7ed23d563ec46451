// `monoref gfx`: what a code object says of itself, launches described by files, and bad ones of
// both.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace monoref {
namespace {

using Json = nlohmann::json;

struct Ran {
  int code = -1;
  std::string out;  ///< standard output and standard error together
  bool says(const std::string& text) const { return out.find(text) != std::string::npos; }
};

Ran run(const std::string& arguments) {
  const std::string command = std::string(MONOREF_PROGRAM) + " gfx " + arguments + " 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  Ran ran;
  std::array<char, 4096> buffer{};
  while (const std::size_t count = fread(buffer.data(), 1, buffer.size(), pipe))
    ran.out.append(buffer.data(), count);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) ran.code = WEXITSTATUS(status);
  return ran;
}

constexpr std::size_t kCount = 64;  ///< words of an operand; a mask and kWide zeros follow them
constexpr std::size_t kMaskEnd = 12 * kCount + 8;
constexpr std::size_t kWide = 256;

/// One launch of a kernel that adds whole numbers, as a file; tests change what they like.
class GfxCommand : public testing::Test {
 protected:
  GfxCommand() {
    folder_ = std::filesystem::temp_directory_path() /
              (std::string("monoref_gfx_") +
               testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    const Ran ran = run(fmt::format("describe {} --json {}", object_, path("object.json")));
    EXPECT_EQ(ran.code, 0) << ran.out;
    std::ifstream stream(path("object.json"));
    described_ = Json::parse(stream);
    for (std::uint32_t n = 0; n < kCount; ++n) {
      a_.push_back(n * 3);
      b_.push_back(0xfffffff0U + n);
      sum_.push_back(a_.back() + b_.back());
    }
  }
  ~GfxCommand() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  const Json& kernel(const std::string& name) const {
    for (const Json& one : described_.at("kernels"))
      if (one.at("name") == name) return one;
    throw std::invalid_argument(name);
  }
  Json launch() const;
  Json header(const Json& launch) const;
  /// Writes the file and runs it.
  Ran execute(const Json& header, const std::string& more = "") const;
  Ran execute_launch(const Json& description) const { return execute(header(description)); }
  std::vector<char> bytes_of(const std::string& file) const {
    std::ifstream stream(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  void write(const std::string& name, const std::vector<char>& bytes) const {
    std::ofstream(path(name), std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }

  std::filesystem::path folder_;
  std::string object_ = std::string(MONOREF_FOREIGN_DIRECTORY) + "/instructions.gfx950.co";
  Json described_;
  std::vector<std::uint32_t> a_, b_, sum_;
};

Json GfxCommand::launch() const {
  const Json& of_object = kernel("test_v_add_u32");
  Json arguments = Json::array();
  std::size_t n = 0;
  for (const Json& parameter : of_object.at("arguments")) {
    Json argument{{"name", fmt::format("p{}", n)},
                  {"offset", parameter.at("offset")},
                  {"size", parameter.at("size")},
                  {"kind", "pointer"}};
    if (parameter.at("kind").get<std::string>().starts_with("hidden_"))
      argument["kind"] = "hidden";
    else if (n < 4)
      argument["before"] = std::vector{"a", "b", "a", "mask"}[n];
    else
      argument.update({{"before", "zeros"}, {"after", "sum"}});
    ++n;
    arguments.push_back(argument);
  }
  return {{"kernel", "test_v_add_u32"},
          {"grid", {1, 1, 1}},
          {"threads", {kCount, 1, 1}},
          {"dynamic_lds", 0},
          {"static_lds", of_object.at("lds_bytes")},
          {"kernarg_bytes", of_object.at("argument_bytes")},
          {"preloaded_dwords", of_object.at("preloaded_words")},
          {"private_bytes", of_object.at("scratch_bytes")},
          {"args", arguments}};
}

Json GfxCommand::header(const Json& description) const {
  const auto words = [](std::size_t at) {
    return Json{{"dtype", "U32"}, {"shape", {kCount}}, {"data_offsets", {at, at + 4 * kCount}}};
  };
  return {
      {"__metadata__", {{"launch", description.dump()}}},
      {"a", words(0)},
      {"b", words(4 * kCount)},
      {"sum", words(8 * kCount)},
      {"wide",
       {{"dtype", "U32"}, {"shape", {kWide}}, {"data_offsets", {kMaskEnd, kMaskEnd + 4 * kWide}}}},
      {"mask", {{"dtype", "I64"}, {"shape", {1}}, {"data_offsets", {12 * kCount, kMaskEnd}}}}};
}

Ran GfxCommand::execute(const Json& header, const std::string& more) const {
  const std::string text = header.dump();
  const std::uint64_t length = text.size();
  std::ofstream file(path("launch.safetensors"), std::ios::binary);
  const auto put = [&file](const auto* from, std::size_t count) {
    file.write(reinterpret_cast<const char*>(from),
               static_cast<std::streamsize>(count * sizeof(*from)));
  };
  put(&length, 1);
  put(text.data(), text.size());
  for (const auto* words : {&a_, &b_, &sum_}) put(words->data(), kCount);
  const std::uint64_t mask = ~std::uint64_t{0};
  put(&mask, 1);
  const std::vector<std::uint32_t> wide(kWide);
  put(wide.data(), kWide);
  file.close();
  return run(fmt::format("run {} --launch {} {}", object_, path("launch.safetensors"), more));
}

TEST_F(GfxCommand, DescribesKernelsArgumentsAndOpcodes) {
  const Ran ran = run("describe " + object_);
  EXPECT_EQ(ran.code, 0);
  EXPECT_TRUE(ran.says("instructions.gfx950.co: gfx950, code object version 6, ")) << ran.out;
  EXPECT_TRUE(ran.says("kernel test_v_add_u32\n")) << ran.out;
  EXPECT_TRUE(ran.says("offset   32    8 bytes  global_buffer")) << ran.out;
  EXPECT_TRUE(ran.says("binary32 rounds to nearest, subnormals kept")) << ran.out;
  EXPECT_TRUE(ran.says(" opcodes, all known\n")) << ran.out;
  EXPECT_TRUE(ran.says(" v_mfma_f32_16x16x32_bf16")) << ran.out;
}

TEST_F(GfxCommand, SameIs0AndDifferentIs1) {
  const Ran same = execute_launch(launch());
  EXPECT_EQ(same.code, 0) << same.out;
  EXPECT_TRUE(same.says("p4: 64 elements, 64 the same, 0 different\n")) << same.out;
  EXPECT_TRUE(same.says("gfx: 1 cases, 1 exact, 0 allowed, 0 wrong")) << same.out;
  EXPECT_FALSE(same.says("provisional")) << same.out;
  ++sum_[5];
  const Ran different = execute_launch(launch());
  EXPECT_EQ(different.code, 1) << different.out;
  EXPECT_TRUE(different.says("p4: 64 elements, 63 the same, 1 different\n")) << different.out;
  EXPECT_TRUE(different.says("p4[axis 0 5]: expected 0x00000005, got 0x00000004")) << different.out;
}

/// What rests on how a chip's matrix unit adds says so.
TEST_F(GfxCommand, MatrixVerdictsAreProvisional) {
  Json description = launch();
  description["kernel"] = "test_f32_16x16x4";
  for (const std::size_t n : {2U, 3U}) description["args"][n]["before"] = "wide";
  description["args"][4]["before"] = "wide";
  description["args"][4].erase("after");
  const Ran ran = execute_launch(description);
  EXPECT_EQ(ran.code, 1) << ran.out;
  EXPECT_TRUE(
      ran.says("provisional: matrix instructions add by the model exact, and how gfx950 "
               "adds is not public"))
      << ran.out;
}

TEST_F(GfxCommand, BadLaunchesAreClearErrors) {
  const auto expect_refused = [&](const Json& description, const std::string& text) {
    const Ran ran = execute_launch(description);
    EXPECT_EQ(ran.code, 2) << ran.out;
    EXPECT_TRUE(ran.says(text)) << text << "\n" << ran.out;
  };
  Json bad = launch();
  bad["kernel"] = "other";
  expect_refused(bad, "has no kernel 'other'");
  bad = launch();
  bad["grid"] = {1, 0, 1};
  expect_refused(bad, "launch, grid[1]: is 0, must be a whole number from 1 to 2147483647");
  bad = launch();
  bad["grid"][0] = std::nan("");
  expect_refused(bad, "launch, grid[0]: is null, must be a whole number");
  bad = launch();
  bad["threads"] = {2048, 1, 1};
  expect_refused(bad, "launch, threads[0]: is 2048, must be a whole number from 1 to 1024");
  bad = launch();
  bad["threads"] = {128, 1, 1};
  expect_refused(bad, "has 128 threads, limit 64");
  bad = launch();
  bad["args"][1]["offset"] = 1 << 20;
  expect_refused(bad, "'p1', offset: is 1048576, must be a whole number from 0 to ");
  bad = launch();
  bad["args"][1]["offset"] = 9;
  expect_refused(bad, "argument 'p1' has offset 9 and 8 bytes in the launch, 8 and 8 in the code");
  bad = launch();
  bad["args"][0]["before"] = "nothing";
  expect_refused(bad, "tensor 'nothing': there is none");
  bad = launch();
  bad["args"][0]["kind"] = "fp32";
  bad["args"][0]["value"] = "many";
  expect_refused(bad, "'p0', value: is \"many\", must be a finite number");
  bad = launch();
  bad["kernarg_bytes"] = 4;
  expect_refused(bad, "must be a whole number from 0 to ");
}

TEST_F(GfxCommand, BadFilesAreClearErrors) {
  Json bad = header(launch());
  bad["a"]["data_offsets"] = {0, 1 << 20};
  EXPECT_TRUE(execute(bad).says("tensor 'a', data_offsets: is 1048576, must be a whole number"));
  bad = header(launch());
  bad["a"]["shape"] = {std::int64_t{1} << 40, std::int64_t{1} << 40};
  EXPECT_TRUE(execute(bad).says("tensor 'a', shape: is 1099511627776, must be a whole number"));
  bad = header(launch());
  bad.erase("__metadata__");
  EXPECT_TRUE(execute(bad).says("has no '__metadata__'"));
  EXPECT_TRUE(execute(header(launch()), "--mfma guess")
                  .says("--mfma: 'guess' is not one of exact, portable, "));
}

/// A code object cut anywhere, or of another machine, is an error and nothing worse.
TEST_F(GfxCommand, BrokenObjectsAreClearErrors) {
  const std::vector<char> whole = bytes_of(object_);
  ASSERT_GT(whole.size(), 5000U);
  for (std::size_t length = 0; length < whole.size(); length += 1 + whole.size() / 23) {
    write("cut.co", {whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length)});
    const Ran ran = run("describe " + path("cut.co"));
    EXPECT_EQ(ran.code, 2) << length << ": " << ran.out;
    EXPECT_TRUE(ran.says("cut.co")) << ran.out;
  }
  std::vector<char> other = whole;
  other[18] = 62;  // e_machine: x86-64
  other[19] = 0;
  write("other.co", other);
  const Ran ran = run("describe " + path("other.co"));
  EXPECT_EQ(ran.code, 2);
  EXPECT_TRUE(ran.says("is no AMD GPU code object")) << ran.out;
  EXPECT_EQ(run("describe " + path("missing.co")).code, 2);
}

/// Any byte of a header or a table changed: described, or refused; never a crash.
TEST_F(GfxCommand, ChangedBytesDoNotCrash) {
  const std::vector<char> whole = bytes_of(object_);
  for (std::size_t n = 0; n < 60; ++n) {
    std::vector<char> changed = whole;
    const std::size_t at = n < 40 ? n * 3 + 16 : whole.size() - 1 - (n - 40) * 61;
    changed[at] = static_cast<char>(changed[at] ^ (n % 2 == 0 ? 0x80 : 0x01));
    write("changed.co", changed);
    const Ran ran = run("describe " + path("changed.co"));
    EXPECT_TRUE(ran.code == 0 || ran.code == 2) << at << ": " << ran.code << " " << ran.out;
  }
}

}  // namespace
}  // namespace monoref
