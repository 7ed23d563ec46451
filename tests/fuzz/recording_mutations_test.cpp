// A recording is somebody's file: whatever is changed in one, a judge or a stage answers with a
// verdict, in bounded time and memory, and refusals say what they speak of.
#include "tests/fuzz/recording_mutations.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <new>
#include <set>

#include "fuzz/judges/judge.hpp"
#include "fuzz/runner.hpp"
#include "golden/isolation.hpp"

namespace monoref::testing {
namespace {

namespace fs = std::filesystem;

constexpr ReadLimits kLimits{.cpu_seconds = 20,
                             .wall_seconds = 300,
                             .memory_bytes = std::size_t{1} << 30,
                             .answer_bytes = std::size_t{1} << 16};

/// A verdict on a stage's case: the kernels of one wave beside the reference.
CaseResult judged_by_stage(const Stage& stage, const Recording& file, const RecordedCase& item) {
  CaseResult result;
  try {
    Case adopted = stage.adopt(file, item);
    adopted.stage = stage.name;
    KernelRunner wave64(device::make_host_backend(64));
    result = judge_case(stage, adopted, {.runners = {&wave64}, .properties = true});
  } catch (const Refusal& refusal) {
    result.runs.push_back(
        {.runner = "reference", .verdict = Verdict::kRefused, .message = refusal.what()});
  }
  return result;
}

/// What is wrong with the verdict; empty if nothing.
std::string complaint(const CaseResult& result, std::string_view begin) {
  for (const RunResult& run : result.runs) {
    const bool kernel_differs =
        run.wave != 0 && run.verdict != Verdict::kExact && run.verdict != Verdict::kRefused;
    if (run.verdict >= Verdict::kCrashed || kernel_differs)
      return fmt::format("{} wave {}: {}", run.runner, run.wave, run.message);
    if (run.verdict == Verdict::kRefused && !run.message.starts_with(begin) &&
        !run.message.starts_with("recording "))
      return fmt::format("a refusal that names nothing: {}", run.message);
  }
  return "";
}

std::string answer_to(const Recording& file, const RecordedCase& item) {
  try {
    if (const RecordingJudge* judge = find_judge(file.stage)) {
      Recording alone = file;
      alone.cases = {item};
      return complaint(judge_recording(*judge, alone).at(0), "recording ");
    }
    const Stage* stage = stage_for_recording(file.stage);
    return complaint(judged_by_stage(*stage, file, item), std::string(stage->name) + ": ");
  } catch (const std::bad_alloc&) {
    return "out of memory";
  } catch (const std::exception& error) {
    return fmt::format("not a refusal: {}", error.what());
  }
}

/// The complaint, or how the child that was to find it ended.
std::string isolated_answer(const Recording& file, const RecordedCase& item) {
  const IsolatedResult result = run_isolated(
      [&] {
        const std::string text = answer_to(file, item);
        const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
        return std::vector<std::byte>(bytes, bytes + text.size());
      },
      kLimits);
  if (!result.finished) return result.failure;
  return {reinterpret_cast<const char*>(result.answer.data()), result.answer.size()};
}

std::int64_t elements_of(const RecordedCase& item) {
  std::int64_t elements = 0;
  for (const auto* side : {&item.inputs, &item.outputs})
    for (const NamedTensor& named : *side) elements += named.tensor.layout().elements();
  return elements;
}

/// The smallest case of each set of names and of each word among the parameters.
std::vector<const RecordedCase*> smallest_cases(const Recording& file) {
  std::map<std::set<std::string>, const RecordedCase*> smallest;
  for (const RecordedCase& item : file.cases) {
    std::set<std::string> kind;
    for (const NamedTensor& named : item.inputs) kind.insert(named.name);
    for (const NamedTensor& named : item.outputs)
      if (!named.name.starts_with("chunk")) kind.insert(named.name);
    for (const NamedScalar& scalar : item.scalars)
      if (const auto* word = std::get_if<std::string>(&scalar.value)) kind.insert(*word);
    const RecordedCase*& known = smallest[kind];
    if (known == nullptr || elements_of(item) < elements_of(*known)) known = &item;
  }
  std::vector<const RecordedCase*> cases;
  for (const auto& [kind, item] : smallest) cases.push_back(item);
  return cases;
}

std::vector<std::string> recorded_files() {
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(MONOREF_RECORDED_DIR))
    if (entry.path().extension() == ".h5") files.push_back(entry.path().stem().string());
  std::sort(files.begin(), files.end());
  return files;
}

class MutatedRecording : public ::testing::TestWithParam<std::string> {};

TEST_P(MutatedRecording, EndsInAVerdict) {
  const Recording file = read_recording(fs::path(MONOREF_RECORDED_DIR) / (GetParam() + ".h5"));
  std::size_t tried = 0;
  for (const RecordedCase* item : smallest_cases(file)) {
    ASSERT_EQ(isolated_answer(file, *item), "") << item->title;
    for (const RecordingMutation& mutation : mutations_of(*item, 1)) {
      RecordedCase changed = *item;
      mutation.apply(changed);
      EXPECT_EQ(isolated_answer(file, changed), "") << item->title << ": " << mutation.name;
      ++tried;
    }
  }
  EXPECT_GT(tried, 20u);
  RecordProperty("mutations", static_cast<int>(tried));
}

INSTANTIATE_TEST_SUITE_P(Recordings, MutatedRecording, ::testing::ValuesIn(recorded_files()),
                         [](const auto& file) { return file.param; });

}  // namespace
}  // namespace monoref::testing
