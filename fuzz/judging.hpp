// Judging in a process of its own: whatever happens to the reference, a judge or a kernel there is
// the verdict of one case, and the next case is judged all the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fuzz/runner.hpp"
#include "fuzz/verdict.hpp"
#include "golden/listening.hpp"

namespace monoref {

/// What judging one case may use, so that a number out of a file costs neither hours nor gigabytes.
/// Both grow with what the file holds, which has to be read and computed with.
struct JudgeLimits {
  /// Processor time of one step: the reference, one property, one judge. Runners watch their own.
  double seconds = 20;
  double seconds_per_mebibyte = 1;
  double sanitized_factor = 20;  ///< a sanitizer makes everything slower
  /// A step that waits for ever: beyond every time limit that runners have by themselves.
  double wall_seconds = 600;
  /// Memory in use.
  std::size_t bytes = std::size_t{1} << 30;
  std::size_t bytes_per_byte = 16;
  /// Stacks of the threads that an OpenMP region starts on each processor.
  std::size_t bytes_per_processor = std::size_t{32} << 20;

  /// What a step on a case of a file that holds so many bytes may use.
  SilenceLimits of_step(std::size_t file_bytes) const;
  /// The same for what watches its own time, or comes from ourselves.
  SilenceLimits of_runner(std::size_t file_bytes) const;
  static SilenceLimits none();
};

/// What the judging process says about one file.
class JudgeStream {
 public:
  /// `done` cases of the file were judged before and are passed over. `is_second`: the next one
  /// hung in another process, which lost its device, and is judged once more.
  JudgeStream(const Tell& tell, std::uint64_t done, bool is_second = false);

  /// The file has been read and holds so many bytes: that decides what a case may use.
  void has_read(std::size_t bytes);
  /// The case comes from a line, which its stage has checked: it may use whatever it needs.
  void trust();

  /// What is said of a case.
  struct Judged {
    CaseResult result;
    std::string text;  ///< more for people, printed behind the result
  };
  /// One case: `judge` is called unless the case was judged before. `so_far` is what is known of it
  /// (stage, title, contract, repro) and what is said of it if it cannot be judged to an end; the
  /// exceptions that `judge` throws make it refused.
  void judge(const CaseResult& so_far, const std::function<Judged()>& judge);
  void step(const std::string& who, bool is_runner);
  /// The same, for those who judge.
  JudgeSteps steps();

  /// Something about the file that is no verdict.
  void note(const std::string& text);
  /// The file cannot be judged, or not all of it.
  void bad_input(const std::string& text);

 private:
  const Tell& tell_;
  std::uint64_t left_to_pass_;
  bool is_second_;
  std::string who_ = "reference";
};

/// The cases of several files, or whatever else is judged one after the other.
struct Judging {
  std::vector<std::string> files;  ///< names, for messages
  /// Called in the judging process.
  std::function<std::vector<std::unique_ptr<Runner>>()> make_runners;
  std::function<void(std::size_t file, const std::vector<Runner*>& runners, JudgeStream& stream)>
      judge;
  JudgeLimits limits = {};
};

/// Told what comes of it, file by file, in order.
struct JudgingListener {
  std::function<void(const std::string& runner)> on_runner;
  std::function<void(std::size_t file, const JudgeStream::Judged& judged)> on_case;
  /// All cases of the file have been told.
  std::function<void(std::size_t file)> on_file;
  std::function<void(std::size_t file, const std::string& text)> on_note;
  /// A file that cannot be judged, named.
  std::function<void(const std::string& text)> on_bad_input;
  /// The runners cannot be made: nothing is judged.
  std::function<void(const std::string& text)> on_unavailable;
};

/// Judges all files, each case once, with a new process after each that died. A case that hung and
/// took the device along is judged a second time, first thing in a new process. Ends early when the
/// program is asked to stop (fuzz/stop.hpp): the case under way is finished first if that takes no
/// longer than kGraceSeconds.
void judge_files(const Judging& judging, const JudgingListener& listener);

}  // namespace monoref
