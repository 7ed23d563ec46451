#include "fuzz/mutants.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>

#include "fuzz/commands/commands.hpp"
#include "fuzz/report.hpp"
#include "fuzz/stop.hpp"

namespace monoref {
namespace {

struct PlantedFault {
  const Stage* stage;
  const Mutant* mutant;
};

/// Those that can show: some need ranks with devices of their own.
std::vector<PlantedFault> planted(const CommonOptions& common, const std::string& only,
                                  bool has_devices) {
  std::vector<PlantedFault> list;
  std::vector<std::string_view> names;
  for (const Stage* stage : select_stages(common.stages))
    for (const Mutant& mutant : stage->mutants) {
      if (mutant.needs_devices && !has_devices) continue;
      names.push_back(mutant.name);
      if (only.empty() || only == mutant.name) list.push_back({stage, &mutant});
    }
  if (list.empty()) refuse("--only: no mutant '{}'; there are {}", only, fmt::join(names, ", "));
  return list;
}

/// Kernels with planted faults: on host for each wave, on nvidia for its own.
std::vector<std::unique_ptr<Runner>> runners_with_faults(const CommonOptions& common,
                                                         std::span<const int> devices) {
  constexpr auto kBuild = device::KernelBuild::kWithFaults;
  std::vector<std::unique_ptr<Runner>> runners;
  if (common.backend == "host") {
    for (const int wave : waves_of(common.wave.empty() ? "both" : common.wave))
      runners.push_back(std::make_unique<KernelRunner>(device::make_host_backend(wave, kBuild)));
  } else if (common.backend == "nvidia") {
    runners.push_back(std::make_unique<KernelRunner>(device::make_nvidia_backend(devices, kBuild),
                                                     LimitOf::kPassedTime));
  } else {
    refuse("--backend: planted faults exist on host and nvidia, not on '{}'", common.backend);
  }
  for (const auto& runner : runners) runner->set_time_limit(common.time_limit);
  return runners;
}

std::string_view fate_name(MutantFate fate) {
  switch (fate) {
    case MutantFate::kKilled:
      return "killed";
    case MutantFate::kSurvived:
      return "survived";
    case MutantFate::kNotTried:
      break;
  }
  return "not tried";
}

nlohmann::json mutant_json(const MutantResult& result) {
  return {{"mutant", result.mutant->name},
          {"stage", result.stage->name},
          {"bug_case", result.mutant->bug_case},
          {"fate", fate_name(result.fate)},
          {"cases", result.cases},
          {"verdict", verdict_name(result.verdict)},
          {"wave", result.wave},
          {"repro", result.repro}};
}

std::string told(const MutantResult& result) {
  switch (result.fate) {
    case MutantFate::kKilled:
      return result.repro;
    case MutantFate::kSurvived:
      return "SURVIVED";
    case MutantFate::kNotTried:
      break;
  }
  return "NOT TRIED";
}

/// How many mutants met each fate.
struct Fates {
  std::array<std::size_t, 3> counts{};
  void add(MutantFate fate) { ++counts[static_cast<std::size_t>(fate)]; }
  std::size_t of(MutantFate fate) const { return counts[static_cast<std::size_t>(fate)]; }
};

}  // namespace

int mutants_command(const CommonOptions& common, const MutantsOptions& options) {
  check_backend(common);
  const std::vector<int> devices = common.parsed_devices();
  const auto list = planted(common, options.only, devices.size() > 1);
  const auto runners = runners_with_faults(common, devices);
  note_stop_signals();
  JsonFile json(common.json);
  nlohmann::json table = nlohmann::json::array();
  Fates fates;
  Summary judged;
  for (const auto& runner : runners)
    judged.add_runs(runner_token(runner->name(), runner->wave()), 0);
  fmt::print("{:<34} {:<8} {:<20} {:>6}  {}\n", "mutant", "bug", "stage", "cases",
             "shrunken repro");
  for (const PlantedFault& item : list) {
    const MutantResult result = try_mutant(*item.stage, *item.mutant, pointers(runners),
                                           common.seed, options.cases, stop_requested);
    fates.add(result.fate);
    judged.add(result.judged);
    table.push_back(mutant_json(result));
    if (common.quiet && result.fate == MutantFate::kKilled) continue;
    fmt::print("{:<34} {:<8} {:<20} {:>6}  {}\n", result.mutant->name, result.mutant->bug_case,
               result.stage->name, result.cases, told(result));
    std::fflush(stdout);
  }
  const std::size_t survived = fates.of(MutantFate::kSurvived);
  const std::size_t untried = fates.of(MutantFate::kNotTried);
  json.set("mutants", table);
  nlohmann::json runs = summary_json("mutants", judged)["runs"];
  json.finish({{"command", "mutants"},
               {"runs", std::move(runs)},
               {"planted", list.size()},
               {"killed", fates.of(MutantFate::kKilled)},
               {"survived", survived},
               {"not_tried", untried}});
  fmt::print("{}\nmutants: {} planted, {} killed, {} survived{}\n", judged.runs_line(), list.size(),
             fates.of(MutantFate::kKilled), survived,
             untried == 0 ? "" : fmt::format(", {} not tried", untried));
  return survived + untried == 0 ? 0 : 1;
}

}  // namespace monoref
