// Running a case: through a backend's kernels or somebody's plugin, and judging the result.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fuzz/launch_choice.hpp"
#include "fuzz/stage.hpp"
#include "fuzz/verdict.hpp"

namespace monoref {

/// What a run produced. Outputs are meaningful only if status is kOk.
struct RunOutputs {
  device::RunStatus status = device::RunStatus::kOk;
  std::string message;
  /// The implementation itself declined the input (plugins can).
  bool refused = false;
  Outputs outputs;
  /// Hung, and this process cannot have the device back to run it once more.
  bool is_lost = false;
};

/// What one run of one case may take unless a caller says otherwise, in seconds. A hundred times
/// what the slowest drawn case takes, and few enough that an endless loop is soon known as one.
constexpr double kTimeLimit = 10.0;

/// Something that computes a stage's outputs and is under test.
class Runner {
 public:
  virtual ~Runner() = default;
  virtual std::string name() const = 0;
  virtual int wave() const = 0;
  /// Whether it knows the stage. Cases of other stages are judged without it.
  virtual bool offers(const Stage& stage);
  /// Whether it also computes the outputs that are `on_host`; kernels do not.
  virtual bool runs_host_code() const { return true; }
  /// Runs with poisoned outputs and guard regions; damaged guards and changed inputs are kCrashed.
  virtual RunOutputs run(const Stage& stage, const Case& item,
                         std::span<const OutputSpec> specs) = 0;
  /// Runs `earlier`, then `later` through the same buffers with whatever the first left in them.
  /// Nothing where buffers cannot be shared or the runner keeps none between calls.
  virtual std::optional<RunOutputs> run_after(const Stage& stage, const Case& earlier,
                                              const Case& later);
  /// How kernels are launched from now on; only in-tree ones can be told.
  virtual void set_launch(const LaunchChoice& choice) { static_cast<void>(choice); }
  /// Seconds that one run of one case may take before it is kHung; kTimeLimit unless set.
  virtual void set_time_limit(double seconds) { static_cast<void>(seconds); }
};

/// What a backend's time limit counts: processor time of the kernels alone, or time that passes,
/// which others on the same device may take.
enum class LimitOf : std::uint8_t { kProcessorTime, kPassedTime };

/// Runs the in-tree kernels on a backend. Where its limit is one of passed time, a run that reaches
/// it is done a second time, alone, before it is kHung.
class KernelRunner : public Runner {
 public:
  explicit KernelRunner(std::unique_ptr<device::Backend> backend,
                        LimitOf limit = LimitOf::kProcessorTime)
      : backend_(std::move(backend)), limit_(limit) {}
  std::string name() const override { return backend_->name(); }
  int wave() const override { return backend_->wave(); }
  /// Stages that the original computes on the host have no kernel.
  bool offers(const Stage& stage) override { return stage.launch != nullptr; }
  bool runs_host_code() const override { return false; }
  RunOutputs run(const Stage& stage, const Case& item, std::span<const OutputSpec> specs) override;
  std::optional<RunOutputs> run_after(const Stage& stage, const Case& earlier,
                                      const Case& later) override;
  void set_launch(const LaunchChoice& choice) override { launch_ = choice; }
  void set_time_limit(double seconds) override { backend_->set_time_limit(seconds); }
  device::Backend& backend() { return *backend_; }

 private:
  RunOutputs run_once(const Stage& stage, const Case& item, std::span<const OutputSpec> specs);
  std::optional<RunOutputs> run_after_once(const Stage& stage, const Case& earlier,
                                           const Case& later);
  std::optional<RunOutputs> twice_if_hung(const std::function<std::optional<RunOutputs>()>& run);

  std::unique_ptr<device::Backend> backend_;
  LaunchChoice launch_;
  LimitOf limit_;
};

/// The reference's outputs for a case. Throws Refusal before anything is computed.
Outputs run_reference(const Stage& stage, const Case& item, std::span<const OutputSpec> specs);

/// Told who is about to compute, and whether that is a runner, which watches its own time.
using JudgeSteps = std::function<void(const std::string& who, bool is_runner)>;

/// What to try on a case beyond reference against stored outputs.
struct JudgeOptions {
  std::vector<Runner*> runners;
  bool properties = false;        ///< also the stage's properties, on reference and runners
  const Case* earlier = nullptr;  ///< also run as the second step through `earlier`'s buffers
  LaunchChoice launch = {};       ///< of everything that runs
  JudgeSteps step;
};

/// Runs and compares everything there is to compare about a case. Never throws for bad input: a
/// refusal is a verdict, and one that the case's `defect` parameter announces is expected.
CaseResult judge_case(const Stage& stage, const Case& item, const JudgeOptions& options);

}  // namespace monoref
