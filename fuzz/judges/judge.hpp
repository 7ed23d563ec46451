// Recordings of foreign implementations: results that may differ from ours by rounding freedom, and
// are judged element by element with a range computed from the recorded inputs.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/verdict.hpp"
#include "golden/recording.hpp"
#include "reference/arithmetic/bounded.hpp"
#include "reference/arithmetic/code_range.hpp"

namespace monoref {

/// Collects the verdicts of one recorded output. An element inside its range is exact if it has our
/// own bits and allowed if not; outside it is wrong. What nobody specifies is not judged at all.
class OutputJudge {
 public:
  using Index = std::vector<std::pair<std::string, std::int64_t>>;

  OutputJudge(std::string name, RunResult& result);
  ~OutputJudge();
  OutputJudge(const OutputJudge&) = delete;
  OutputJudge& operator=(const OutputJudge&) = delete;

  /// A code of a small format: `ours` is the reference's, `range` what any order and the stated
  /// hardware functions may give.
  void code(const Index& index, std::uint32_t ours, const CodeRange& range, std::uint32_t got);
  /// A binary32 number likewise.
  void number(const Index& index, float ours, const Bounded& range, float got);
  /// Only these bits are right.
  void bits(const Index& index, std::uint64_t expected, std::uint64_t got);
  /// An id that a bound decides: `permitted` says whether it may stand, `limit` why not.
  void id(const Index& index, std::int64_t ours, bool permitted, std::int64_t got,
          std::string limit);
  /// Elements that no sound bound can tell right from wrong.
  void leave_out(std::uint64_t elements) { tally_.undecided += elements; }

 private:
  /// What may stand in an element's place, in words, and its ends where it is an interval.
  struct Permitted {
    std::string text;
    std::string low;
    std::string high;
  };
  static Permitted permitted(const CodeRange& range);
  static Permitted permitted(const Bounded& range);
  void wrong(const Index& index, std::string expected, std::string got, Permitted permitted);

  RunResult& result_;
  OutputTally tally_;
};

/// How the recordings of one kind are judged.
struct RecordingJudge {
  std::string_view recording;  ///< their `stage` attribute
  std::string_view stage;      ///< the stage of ours that they speak of
  std::string_view contract;   ///< what is granted to the implementation, in words
  void (*judge)(const RecordedCase& recorded, RunResult& result);
};

/// All of them; `find_judge` gives null for a kind that is not among them.
const std::vector<RecordingJudge>& recording_judges();
const RecordingJudge* find_judge(std::string_view recording);

/// Products that the judging of one case may take: a step of the model at full size has fewer.
inline constexpr std::int64_t kMostJudgedProducts = std::int64_t{1} << 33;
/// Refuses a case whose judging takes the product of `factors`, if that is more.
void check_work(const RecordedCase& recorded, std::initializer_list<std::int64_t> factors);

/// Judges one case of a recording. One that cannot be judged is refused, and what that says begins
/// with the recording's kind and the case.
CaseResult judge_recorded(const RecordingJudge& judge, const RecordedCase& recorded);
/// Judges every case of a recording.
std::vector<CaseResult> judge_recording(const RecordingJudge& judge, const Recording& recording);

}  // namespace monoref
