#include "fuzz/plugin_runner.hpp"

#include <map>

#include "device/backends/plugin.hpp"
#include "fuzz/compare.hpp"

namespace monoref {
namespace {

device::PluginTensor plugin_tensor(const std::string& name, const Tensor& tensor,
                                   std::span<const std::byte> image) {
  device::PluginTensor made{.name = name,
                            .dtype = std::string(dtype_name(tensor.type())),
                            .element_size = tensor.element_size(),
                            .dims = tensor.dims(),
                            .strides = tensor.layout().strides,
                            .image = image};
  for (const Extent& extent : tensor.layout().extents)
    made.extents.push_back({static_cast<std::uint64_t>(extent.offset) * tensor.element_size(),
                            static_cast<std::uint64_t>(extent.count) * tensor.element_size()});
  return made;
}

RunOutputs run_outputs(device::PluginReport&& report, Outputs&& outputs) {
  RunOutputs run{.message = std::move(report.message), .refused = false};
  switch (report.status) {
    case device::PluginStatus::kRefused:
      run.refused = true;
      return run;
    case device::PluginStatus::kHung:
      run.status = device::RunStatus::kHung;
      return run;
    case device::PluginStatus::kFailed:
    case device::PluginStatus::kCrashed:
      run.status = device::RunStatus::kCrashed;
      return run;
    case device::PluginStatus::kDone:
      break;
  }
  if (report.damaged_guard) {
    run.status = device::RunStatus::kCrashed;
    run.message = *report.damaged_guard;
    return run;
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) outputs[i].tensor.set_image(report.outputs[i]);
  run.outputs = std::move(outputs);
  return run;
}

class PluginRunner : public Runner {
 public:
  explicit PluginRunner(const std::string& path) : plugin_(path) {}

  std::string name() const override { return "plugin:" + plugin_.name(); }
  int wave() const override { return 0; }

  /// Also a stage over which the plugin crashed or hung when it was asked: what became of the
  /// question is then the result of every run.
  bool offers(const Stage& stage) override {
    const device::PluginOffer& offer = offer_of(stage);
    return offer.offered || offer.status != device::PluginStatus::kDone;
  }

  RunOutputs run(const Stage& stage, const Case& item, std::span<const OutputSpec> specs) override {
    if (const device::PluginOffer& offer = offer_of(stage);
        offer.status != device::PluginStatus::kDone)
      return run_outputs({.status = offer.status, .message = offer.message}, {});
    Outputs outputs = make_outputs(item, specs, kOutputPoison);
    device::PluginCall call{.stage = std::string(stage.name), .contract = item.contract.text()};
    for (const NamedScalar& scalar : item.scalars)
      call.scalars.push_back({scalar.name, scalar.value});
    std::vector<std::vector<std::byte>> images;
    images.reserve(item.inputs.size() + outputs.size());  // spans into it stay valid
    for (const NamedTensor& input : item.inputs) {
      images.push_back(input.tensor.image());
      call.inputs.push_back(plugin_tensor(input.name, input.tensor, images.back()));
    }
    for (const NamedTensor& output : outputs) {
      images.push_back(output.tensor.image());
      call.outputs.push_back(plugin_tensor(output.name, output.tensor, images.back()));
    }
    return run_outputs(plugin_.run(call, time_limit_), std::move(outputs));
  }

  void set_time_limit(double seconds) override { time_limit_ = seconds; }

 private:
  double time_limit_ = kTimeLimit;
  /// Asks once.
  const device::PluginOffer& offer_of(const Stage& stage) {
    const auto [known, fresh] = offers_.try_emplace(std::string(stage.name));
    if (fresh) known->second = plugin_.offers(stage.name, time_limit_);
    return known->second;
  }

  device::Plugin plugin_;
  std::map<std::string, device::PluginOffer> offers_;
};

}  // namespace

std::unique_ptr<Runner> make_plugin_runner(const std::string& path) {
  return std::make_unique<PluginRunner>(path);
}

}  // namespace monoref
