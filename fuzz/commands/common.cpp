#include "fuzz/commands/commands.hpp"

#include "fuzz/plugin_runner.hpp"

namespace monoref {
namespace {

constexpr std::string_view kPluginPrefix = "plugin:";

std::vector<int> waves_of(const std::string& text) {
  if (text == "64") return {64};
  if (text == "32") return {32};
  if (text == "both") return {64, 32};
  refuse("--wave: '{}' is not one of 64, 32, both", text);
}

}  // namespace

std::optional<Contract> CommonOptions::parsed_contract() const {
  if (!contract) return std::nullopt;
  return Contract::parse(*contract);
}

std::vector<std::unique_ptr<Runner>> make_runners(const CommonOptions& options,
                                                  const std::string& default_wave) {
  std::vector<std::unique_ptr<Runner>> runners;
  const std::string& name = options.backend;
  if (name == "host") {
    for (const int wave : waves_of(options.wave.empty() ? default_wave : options.wave))
      runners.push_back(std::make_unique<KernelRunner>(device::make_host_backend(wave)));
  } else if (name == "amd") {
    runners.push_back(std::make_unique<KernelRunner>(device::make_amd_backend()));
  } else if (name == "nvidia") {
    runners.push_back(std::make_unique<KernelRunner>(device::make_nvidia_backend()));
  } else if (name.starts_with(kPluginPrefix)) {
    runners.push_back(make_plugin_runner(name.substr(kPluginPrefix.size())));
  } else {
    refuse("--backend: '{}' is not one of host, amd, nvidia, plugin:PATH", name);
  }
  return runners;
}

std::vector<Runner*> pointers(const std::vector<std::unique_ptr<Runner>>& runners) {
  std::vector<Runner*> list;
  for (const auto& runner : runners) list.push_back(runner.get());
  return list;
}

std::filesystem::path default_golden_folder() {
  return MONOREF_GOLDEN_FOLDER;
}

}  // namespace monoref
