#include "fuzz/mutants.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "fuzz/commands/commands.hpp"
#include "fuzz/report.hpp"

namespace monoref {
namespace {

struct Planted {
  const Stage* stage;
  const Mutant* mutant;
};

/// Those that can show: some need ranks with devices of their own.
std::vector<Planted> planted(const CommonOptions& common, const std::string& only,
                             bool has_devices) {
  std::vector<Planted> list;
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

std::unique_ptr<device::Backend> backend_with_faults(const std::string& name,
                                                     std::span<const int> devices) {
  if (name == "host") return device::make_host_backend(64, device::KernelBuild::kWithFaults);
  if (name == "nvidia")
    return device::make_nvidia_backend(devices, device::KernelBuild::kWithFaults);
  refuse("--backend: planted faults exist on host and nvidia, not on '{}'", name);
}

nlohmann::json mutant_json(const MutantResult& result) {
  return {{"mutant", result.mutant->name},
          {"stage", result.stage->name},
          {"bug_case", result.mutant->bug_case},
          {"killed", result.killed},
          {"cases", result.cases},
          {"verdict", verdict_name(result.verdict)},
          {"repro", result.repro}};
}

}  // namespace

int mutants_command(const CommonOptions& common, const MutantsOptions& options) {
  const std::vector<int> devices = common.parsed_devices();
  const auto list = planted(common, options.only, devices.size() > 1);
  KernelRunner runner(backend_with_faults(common.backend, devices));
  JsonFile json(common.json);
  nlohmann::json table = nlohmann::json::array();
  std::size_t killed = 0;
  double left = options.seconds;
  fmt::print("{:<34} {:<8} {:<20} {:>6}  {}\n", "mutant", "bug", "stage", "cases",
             "shrunken repro");
  for (std::size_t i = 0; i < list.size(); ++i) {
    // What quick deaths leave of the budget goes to the stubborn ones.
    const double share = std::max(left, 0.0) / static_cast<double>(list.size() - i);
    const double most = std::min(std::max(left, 0.0), 8 * share);
    const MutantResult result =
        try_mutant(*list[i].stage, *list[i].mutant, runner, common.seed, most);
    left -= result.seconds;
    killed += result.killed ? 1 : 0;
    table.push_back(mutant_json(result));
    fmt::print("{:<34} {:<8} {:<20} {:>6}  {}\n", result.mutant->name, result.mutant->bug_case,
               result.stage->name, result.cases, result.killed ? result.repro : "SURVIVED");
    std::fflush(stdout);
  }
  const std::size_t survived = list.size() - killed;
  json.set("mutants", table);
  json.finish({{"command", "mutants"},
               {"planted", list.size()},
               {"killed", killed},
               {"survived", survived}});
  fmt::print("mutants: {} planted, {} killed, {} survived\n", list.size(), killed, survived);
  return survived == 0 ? 0 : 1;
}

}  // namespace monoref
