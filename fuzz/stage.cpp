#include "fuzz/stage.hpp"

#include <algorithm>
#include <bit>
#include <stdexcept>

#include "fuzz/chain.hpp"
#include "fuzz/placement.hpp"
#include "reference/core/excerpt.hpp"

namespace monoref {

Launcher::Launcher(device::Backend& backend,
                   const std::vector<std::pair<std::string, DType>>& buffers,
                   const device::launch::Shape& shape)
    : backend_(backend), shape_(shape) {
  for (const auto& [name, type] : buffers) buffers_.push_back({name, type, buffers_.size()});
}

Launcher Launcher::asking(device::Backend& backend,
                          const std::vector<std::pair<std::string, DType>>& buffers,
                          std::vector<bool>& on16) {
  Launcher launcher(backend, buffers);
  launcher.on16_ = &on16;
  return launcher;
}

const Launcher::Buffer* Launcher::find(std::string_view name) const {
  const auto found = std::find_if(buffers_.begin(), buffers_.end(),
                                  [&](const Buffer& buffer) { return buffer.name == name; });
  return found == buffers_.end() ? nullptr : &*found;
}

Launcher Launcher::renamed(const std::vector<Renamed>& names) const {
  Launcher inner = *this;
  inner.buffers_.clear();
  for (const Renamed& item : names) {
    const Buffer* buffer = find(item.of);
    if (buffer == nullptr) refuse("launch: there is no buffer '{}'", item.of);
    inner.buffers_.push_back(
        {item.name, buffer->type, buffer->index, buffer->offset + item.offset});
  }
  return inner;
}

void* Launcher::raw_address(std::string_view name, std::size_t element_size) const {
  const Buffer* buffer = find(name);
  if (buffer == nullptr) refuse("launch: there is no buffer '{}'", name);
  if (dtype_size(buffer->type) != element_size)
    refuse("launch: {} is {}, must have elements of {} bytes as the kernel takes", name,
           dtype_name(buffer->type), element_size);
  void* const base = on16_ != nullptr ? std::bit_cast<void*>((buffer->index + 1) << kAskedBits)
                                      : backend_.address(buffer->index, device_.value_or(0));
  if (base == nullptr)
    throw std::logic_error(
        fmt::format("launch: buffer '{}' is not on device {}", name, device_.value_or(0)));
  return static_cast<std::byte*>(base) + buffer->offset * static_cast<std::int64_t>(element_size);
}

Launcher Launcher::on_device(int device) const {
  Launcher there = *this;
  there.device_ = device;
  return there;
}

Launcher Launcher::on_rank(std::int64_t rank, std::int64_t ranks) const {
  return device_ ? *this : on_device(device_of_rank(rank, ranks, backend_.devices()));
}

std::vector<Launcher> Launcher::each_device() const {
  if (device_) return {*this};
  std::vector<Launcher> all;
  for (int device = 0; device < backend_.devices(); ++device) all.push_back(on_device(device));
  return all;
}

std::vector<Launcher::RankGroup> Launcher::rank_groups(std::int64_t ranks,
                                                       std::int64_t present) const {
  std::vector<RankGroup> groups;
  int last = -1;
  for (std::int64_t rank = 0; rank < present; ++rank) {
    const int device = device_.value_or(device_of_rank(rank, ranks, backend_.devices()));
    if (groups.empty() || device != last)
      groups.push_back({rank, 1});
    else
      ++groups.back().count;
    last = device;
  }
  return groups;
}

void Launcher::together(const std::function<void()>& enqueue) const {
  if (device_ || on16_ != nullptr)
    enqueue();
  else
    backend_.together(enqueue);
}

void launch_stage(const Stage& stage, const Case& item, const Launcher& launcher) {
  if (stage.ranks) return stage.launch(item, launcher);
  for (const Launcher& device : launcher.each_device()) stage.launch(item, device);
}

const Tensor& output(const Outputs& outputs, std::string_view name) {
  for (const NamedTensor& item : outputs)
    if (item.name == name) return item.tensor;
  refuse("the stage has no output '{}'", name);
}

std::optional<std::string> contract_refusal(const Stage& stage, const Contract& contract) {
  std::vector<const Stage*> stages;
  if (stage.chain) stages = link_stages(stage);
  stages.push_back(&stage);
  try {
    for (const Stage* part : stages)
      if (part->check_contract) part->check_contract(contract);
  } catch (const Refusal& refusal) {
    return refusal.what();
  }
  return std::nullopt;
}

Stage with_checked_contract(Stage stage) {
  if (!stage.check_contract) return stage;
  stage.outputs = [check = stage.check_contract,
                   inner = std::move(stage.outputs)](const Case& item) {
    check(item.contract);
    return inner(item);
  };
  return stage;
}

const Stage& find_stage(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Stage& stage : all_stages()) {
    if (stage.name == name) return stage;
    names.push_back(stage.name);
  }
  refuse("stage is '{}', must be one of {}", excerpt(name), fmt::join(names, ", "));
}

std::vector<const Stage*> select_stages(std::string_view names) {
  std::vector<const Stage*> selected;
  if (names == "all") {
    for (const Stage& stage : all_stages()) selected.push_back(&stage);
    return selected;
  }
  for (;;) {
    const std::size_t comma = names.find(',');
    const Stage* stage = &find_stage(names.substr(0, comma));
    if (std::find(selected.begin(), selected.end(), stage) == selected.end())
      selected.push_back(stage);
    if (comma == std::string_view::npos) return selected;
    names.remove_prefix(comma + 1);
  }
}

const Stage* stage_for_recording(std::string_view recorded_stage) {
  for (const Stage& stage : all_stages())
    for (const std::string_view known : stage.recordings)
      if (known == recorded_stage) return &stage;
  return nullptr;
}

Case build_case(const Stage& stage, const Params& params, const Contract& contract,
                std::uint64_t seed) {
  Case item = stage.build(params, contract, seed);
  item.stage = stage.name;
  item.contract = contract;
  item.seed = seed;
  item.generator_version = stage.generator_version;
  item.line = format_line(stage.name, contract, seed, stage.generator_version, params);
  item.provenance = {"generated", "monoref"};
  return item;
}

void check_generator_version(const Stage& stage, const CaseLine& line) {
  if (line.generator_version != 0 && line.generator_version != stage.generator_version)
    refuse("line: made by generator {} of stage {}, this is generator {}; use the saved case file",
           line.generator_version, stage.name, stage.generator_version);
}

Case build_case(const CaseLine& line) {
  const Stage& stage = find_stage(line.stage);
  check_generator_version(stage, line);
  Params params(stage.dimensions);
  apply_settings(params, line);
  return build_case(stage, params, line.contract, line.seed);
}

}  // namespace monoref
