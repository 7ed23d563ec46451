#include "fuzz/commands/commands.hpp"

#include <algorithm>
#include <charconv>

#include "device/backends/gfx/backend.hpp"
#include "fuzz/plugin_runner.hpp"

namespace monoref {
namespace {

constexpr std::size_t kMostDevices = 8;  ///< as many as a reduction has ranks
constexpr std::string_view kPluginPrefix = "plugin:";

}  // namespace

std::vector<int> waves_of(const std::string& text) {
  if (text == "64") return {64};
  if (text == "32") return {32};
  if (text == "both") return {64, 32};
  refuse("--wave: '{}' is not one of 64, 32, both", text);
}

namespace {

/// "0,1": device numbers, each once.
std::vector<int> parse_devices(const std::string& text) {
  std::vector<int> devices;
  const char* at = text.data();
  const char* const end = at + text.size();
  for (;;) {
    int device = 0;
    const auto [next, error] = std::from_chars(at, end, device);
    if (error != std::errc{} || device < 0)
      refuse("--devices: '{}' must be numbers of devices, like 0,1", text);
    if (std::find(devices.begin(), devices.end(), device) != devices.end())
      refuse("--devices: '{}' names device {} twice", text, device);
    devices.push_back(device);
    if (next == end) break;
    if (*next != ',') refuse("--devices: '{}' must be numbers of devices, like 0,1", text);
    at = next + 1;
  }
  if (devices.size() > kMostDevices)
    refuse("--devices: '{}' names {} devices, limit {}", text, devices.size(), kMostDevices);
  return devices;
}

}  // namespace

std::vector<int> CommonOptions::parsed_devices() const {
  if (devices.empty()) return {0};
  if (backend != "amd" && backend != "nvidia")
    refuse("--devices: the backend '{}' has no devices to choose from; amd and nvidia have",
           backend);
  return parse_devices(devices);
}

std::optional<Contract> CommonOptions::parsed_contract() const {
  if (!contract) return std::nullopt;
  return Contract::parse(*contract);
}

void check_backend(const CommonOptions& options) {
  options.parsed_devices();
  const std::string& name = options.backend;
  const bool is_plugin = name.starts_with(kPluginPrefix);
  if (name == "host") {
    if (!options.wave.empty()) waves_of(options.wave);
    return;
  }
  if (name != "amd" && name != "nvidia" && name != "gfx942" && name != "gfx950" && !is_plugin)
    refuse("--backend: '{}' is not one of host, amd, nvidia, gfx942, gfx950, plugin:PATH", name);
  if (name.size() == kPluginPrefix.size() && is_plugin)
    refuse("--backend: '{}' names no library, must be plugin:PATH", name);
  if (!options.wave.empty())
    refuse("--wave: '{}' has no effect on '{}', only the host backend has a choice of waves",
           options.wave, name);
}

bool is_selected(const std::vector<const Stage*>& stages, std::string_view names) {
  const std::string list = fmt::format(" {},", names);
  return stages.size() == all_stages().size() ||
         std::any_of(stages.begin(), stages.end(), [&](const Stage* stage) {
           return list.find(fmt::format(" {},", stage->name)) != std::string::npos;
         });
}

namespace {

std::unique_ptr<Runner> on_device(std::unique_ptr<device::Backend> backend) {
  return std::make_unique<KernelRunner>(std::move(backend), LimitOf::kPassedTime);
}

}  // namespace

std::vector<std::unique_ptr<Runner>> make_runners(const CommonOptions& options,
                                                  const std::string& default_wave) {
  check_backend(options);
  std::vector<std::unique_ptr<Runner>> runners;
  const std::string& name = options.backend;
  const std::vector<int> devices = options.parsed_devices();
  if (name == "host") {
    for (const int wave : waves_of(options.wave.empty() ? default_wave : options.wave))
      runners.push_back(std::make_unique<KernelRunner>(device::make_host_backend(wave)));
  } else if (name == "amd") {
    runners.push_back(on_device(device::make_amd_backend(devices)));
  } else if (name == "nvidia") {
    runners.push_back(on_device(device::make_nvidia_backend(devices)));
  } else if (name == "gfx942" || name == "gfx950") {
    runners.push_back(on_device(device::make_gfx_backend(name)));
  } else {
    // A name without a slash would be looked up in the system's library folders.
    runners.push_back(
        make_plugin_runner(std::filesystem::absolute(name.substr(kPluginPrefix.size())).string()));
  }
  for (const auto& runner : runners) runner->set_time_limit(options.time_limit);
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
