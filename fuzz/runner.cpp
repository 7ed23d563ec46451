#include "fuzz/runner.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "fuzz/chain.hpp"
#include "fuzz/compare.hpp"
#include "fuzz/placement.hpp"

namespace monoref {
namespace {

/// One buffer of a placement: an input, or an output with its first content.
struct Slot {
  std::string name;
  const Tensor* tensor;
  bool is_output;
  bool starts_as_input;
};

bool is_overwritten(std::span<const OutputSpec> specs, const std::string& input) {
  return std::any_of(specs.begin(), specs.end(),
                     [&](const OutputSpec& spec) { return spec.starts_as == input; });
}

std::vector<Slot> slots_of(const Case& item, std::span<const OutputSpec> specs,
                           const Outputs& outputs) {
  std::vector<Slot> slots;
  for (const NamedTensor& input : item.inputs)
    if (!is_overwritten(specs, input.name))
      slots.push_back({input.name, &input.tensor, false, false});
  for (std::size_t i = 0; i < specs.size(); ++i)
    slots.push_back(
        {"out." + specs[i].name, &outputs[i].tensor, true, !specs[i].starts_as.empty()});
  return slots;
}

std::vector<std::pair<std::string, DType>> buffer_names(const std::vector<Slot>& slots) {
  std::vector<std::pair<std::string, DType>> names;
  for (const Slot& slot : slots) names.emplace_back(slot.name, slot.tensor->type());
  return names;
}

std::vector<device::ByteExtent> byte_extents(const Tensor& tensor) {
  std::vector<device::ByteExtent> extents;
  const std::uint64_t size = tensor.element_size();
  for (const Extent& extent : tensor.layout().extents)
    extents.push_back({static_cast<std::uint64_t>(extent.offset) * size,
                       static_cast<std::uint64_t>(extent.count) * size});
  return extents;
}

/// The image of a tensor without a copy where it lies in one run.
std::span<const std::byte> image_of(const Tensor& tensor, std::vector<std::byte>& copy) {
  const auto& extents = tensor.layout().extents;
  if (extents.empty()) return {};
  if (extents.size() == 1) return tensor.bytes(extents.front());
  copy = tensor.image();
  return copy;
}

/// The first byte of an image that is not the tensor's. Nearly always there is none, which memcmp
/// says fast.
std::optional<std::size_t> first_change(const Tensor& tensor, std::span<const std::byte> image) {
  std::size_t at = 0;
  for (const Extent& extent : tensor.layout().extents) {
    const auto run = tensor.bytes(extent);
    const auto read = image.subspan(at, run.size());
    if (std::memcmp(run.data(), read.data(), run.size()) != 0)
      return at + static_cast<std::size_t>(
                      std::mismatch(run.begin(), run.end(), read.begin()).first - run.begin());
    at += run.size();
  }
  return std::nullopt;
}

RunOutputs failed(const device::RunReport& report) {
  return {report.status, report.message, false, {}};
}

RunOutputs crashed(std::string message) {
  return {device::RunStatus::kCrashed, std::move(message), false, {}};
}

RunOutputs succeeded(Outputs outputs) {
  return {device::RunStatus::kOk, {}, false, std::move(outputs)};
}

/// Where each buffer begins, in bytes from a multiple of 16: as drawn, but for those that the
/// kernels of one of the cases take on a multiple of 16 only.
std::vector<std::size_t> base_offsets(device::Backend& backend, const Stage& stage,
                                      std::initializer_list<const Case*> cases,
                                      const std::vector<Slot>& slots, std::int64_t bases) {
  std::vector<std::size_t> offsets(slots.size(), 0);
  if (bases == 0) return offsets;
  std::vector<bool> on16(slots.size(), false);
  for (const Case* item : cases)
    launch_stage(stage, *item, Launcher::asking(backend, buffer_names(slots), on16));
  for (std::size_t i = 0; i < slots.size(); ++i)
    if (!on16[i]) offsets[i] = base_offset(bases, i, slots[i].tensor->element_size());
  return offsets;
}

/// Places all buffers. The images of tensors in several runs are copied for this alone: weights are
/// large.
void place(device::Backend& backend, const Stage& stage, const Case& item,
           const std::vector<Slot>& slots, std::int64_t bases) {
  const auto offsets = base_offsets(backend, stage, {&item}, slots, bases);
  Placement placement(backend.devices());
  placement.add(stage, item);
  std::vector<std::vector<std::byte>> copies(slots.size());
  std::vector<device::BufferRequest> requests;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Tensor& tensor = *slots[i].tensor;
    auto extents = byte_extents(tensor);
    auto runs = placement.runs(slots[i].name, extents, tensor.element_size());
    requests.push_back({slots[i].name, std::move(extents), 16, image_of(tensor, copies[i]),
                        std::move(runs), offsets[i]});
  }
  backend.place(requests);
}

/// Launches, waits, and checks the guards; nothing if all is well.
std::optional<RunOutputs> launch_and_check(device::Backend& backend, const Stage& stage,
                                           const Case& item, const std::vector<Slot>& slots,
                                           const device::launch::Shape& shape) {
  launch_stage(stage, item, Launcher(backend, buffer_names(slots), shape));
  const device::RunReport report = backend.finish();
  if (report.status != device::RunStatus::kOk) return failed(report);
  if (const auto damage = backend.damaged_guard()) return crashed(*damage);
  return std::nullopt;
}

std::vector<const Tensor*> pointers(const Outputs& outputs) {
  std::vector<const Tensor*> list;
  for (const NamedTensor& item : outputs) list.push_back(&item.tensor);
  return list;
}

void record_failure(const RunOutputs& run, RunResult& result) {
  result.message = run.message;
  result.is_lost = run.is_lost;
  if (run.refused)
    result.verdict = Verdict::kRefused;
  else
    result.verdict = run.status == device::RunStatus::kHung ? Verdict::kHung : Verdict::kCrashed;
}

std::vector<const Tensor*> outputs_named(std::span<const OutputSpec> specs,
                                         const Outputs& outputs) {
  std::vector<const Tensor*> list;
  for (const OutputSpec& spec : specs) list.push_back(&output(outputs, spec.name));
  return list;
}

void compare_with(std::span<const OutputSpec> specs, const Outputs& expected, const RunOutputs& run,
                  RunResult& result) {
  if (run.status != device::RunStatus::kOk || run.refused) return record_failure(run, result);
  const std::vector<const Tensor*> everywhere(specs.size(), nullptr);
  compare_outputs(specs, outputs_named(specs, expected), everywhere, pointers(run.outputs), false,
                  result);
}

std::vector<std::string_view> names_of(std::span<const OutputSpec> specs) {
  std::vector<std::string_view> names;
  for (const OutputSpec& spec : specs) names.push_back(spec.name);
  return names;
}

/// The reference against outputs known from elsewhere.
RunResult compare_stored(const Case& item, std::span<const OutputSpec> specs,
                         const Outputs& reference) {
  RunResult result{.runner = "reference"};
  std::vector<const Tensor*> expected(specs.size(), nullptr);
  std::vector<const Tensor*> specified(specs.size(), nullptr);
  for (std::size_t i = 0; i < specs.size(); ++i)
    if (const ExpectedOutput* known = item.find_expected(specs[i].name)) {
      expected[i] = &known->tensor;
      if (known->specified) specified[i] = &*known->specified;
    }
  compare_outputs(specs, expected, specified, pointers(reference), true, result);
  for (const ExpectedOutput& known : item.expected)
    if (std::none_of(specs.begin(), specs.end(),
                     [&](const OutputSpec& spec) { return spec.name == known.name; })) {
      result.verdict = Verdict::kWrong;
      result.message = fmt::format("the stored output '{}' must be one of the stage's, {}",
                                   known.name, fmt::join(names_of(specs), ", "));
    }
  return result;
}

/// Carries a failed run out of a property's evaluation.
struct RunFailed {
  RunOutputs run;
};

void tell_step(const JudgeOptions& options, const std::string& who, bool is_runner) {
  if (options.step) options.step(who, is_runner);
}

void check_properties(const Stage& stage, const Case& item, const Outputs& outputs,
                      const Runner* runner, const Evaluate& evaluate, const JudgeOptions& options,
                      CaseResult& result) {
  for (const Property& property : stage.properties) {
    RunResult run{.runner = fmt::format("{}, property {}", runner ? runner->name() : "reference",
                                        property.name),
                  .wave = runner ? runner->wave() : 0};
    tell_step(options, run.runner, runner != nullptr);
    try {
      const auto broken = property.check(item, outputs, evaluate);
      if (!broken) continue;
      run.verdict = Verdict::kWrong;
      run.message = fmt::format("{}: {}", property.statement, *broken);
    } catch (const RunFailed& failure) {
      record_failure(failure.run, run);
    }
    result.runs.push_back(std::move(run));
  }
}

Outputs evaluate_reference(const Stage& stage, const Case& item) {
  return run_reference(stage, item, stage.outputs(item));
}

/// The outputs that a runner is asked for; none if all of a case is host code and it runs none.
std::vector<OutputSpec> asked_of(const Runner& runner, std::span<const OutputSpec> specs) {
  if (runner.runs_host_code()) return {specs.begin(), specs.end()};
  std::vector<OutputSpec> asked;
  std::copy_if(specs.begin(), specs.end(), std::back_inserter(asked),
               [](const OutputSpec& spec) { return !spec.on_host; });
  return asked;
}

/// All outputs in the stage's order: a runner's own, and between them the host's, which are the
/// reference's.
Outputs with_host_outputs(Outputs own, const Outputs& reference) {
  if (own.size() == reference.size()) return own;
  Outputs all;
  auto next = own.begin();
  for (const NamedTensor& known : reference) {
    if (next != own.end() && next->name == known.name)
      all.push_back(std::move(*next++));
    else
      all.push_back(known);
  }
  return all;
}

Outputs evaluate_on(Runner& runner, const Stage& stage, const Case& item) {
  const auto specs = stage.outputs(item);
  const auto asked = asked_of(runner, specs);
  RunOutputs run;
  if (!asked.empty()) run = runner.run(stage, item, asked);
  if (run.status != device::RunStatus::kOk || run.refused) throw RunFailed{std::move(run)};
  if (asked.size() == specs.size()) return std::move(run.outputs);
  return with_host_outputs(std::move(run.outputs), run_reference(stage, item, specs));
}

/// Of a chain that went wrong: the same with nothing overwritten, so that the first difference lies
/// in the output of the stage that made it.
void find_first_stage(Runner& runner, const Stage& stage, const Case& item, RunResult& result) {
  const Stage open = with_own_buffers(stage);
  const auto specs = open.outputs(item);
  RunResult again{.runner = result.runner, .wave = result.wave};
  compare_with(specs, run_reference(open, item, specs), runner.run(open, item, specs), again);
  if (again.first_difference) result.first_difference = again.first_difference;
}

void judge_runner(Runner& runner, const Stage& stage, const Case& item,
                  std::span<const OutputSpec> specs, const Outputs& expected,
                  const JudgeOptions& options, CaseResult& result) {
  const auto asked = asked_of(runner, specs);
  if (asked.empty()) return;
  RunResult run{.runner = runner.name(), .wave = runner.wave(), .is_case = true};
  tell_step(options, runner_token(run.runner, run.wave), true);
  RunOutputs got = runner.run(stage, item, asked);
  compare_with(asked, expected, got, run);
  if (stage.chain && run.verdict == Verdict::kWrong) find_first_stage(runner, stage, item, run);
  const bool sound = !is_failure(run.verdict);
  result.runs.push_back(std::move(run));
  if (!sound) return;
  if (options.properties)
    check_properties(
        stage, item, with_host_outputs(std::move(got.outputs), expected), &runner,
        [&](const Case& variant) { return evaluate_on(runner, stage, variant); }, options, result);
  if (options.earlier == nullptr) return;
  tell_step(options, runner.name() + ", reused buffers", true);
  if (const auto reused = runner.run_after(stage, *options.earlier, item)) {
    RunResult second{.runner = runner.name() + ", reused buffers", .wave = runner.wave()};
    compare_with(asked, expected, *reused, second);
    result.runs.push_back(std::move(second));
  }
}

/// `has_kernels` speaks of the kernels of this tree; somebody else's may do more.
bool takes(Runner& runner, const Stage& stage, const Contract& contract) {
  const bool in_tree = !runner.runs_host_code();
  if (in_tree && stage.has_kernels && !stage.has_kernels(contract)) return false;
  return runner.offers(stage);
}

std::string defect_of(const Case& item) {
  for (const NamedScalar& scalar : item.scalars)
    if (scalar.name == "defect") return item.word("defect");
  return "none";
}

}  // namespace

bool Runner::offers(const Stage&) {
  return true;
}

std::optional<RunOutputs> Runner::run_after(const Stage&, const Case&, const Case&) {
  return std::nullopt;
}

Outputs run_reference(const Stage& stage, const Case& item, std::span<const OutputSpec> specs) {
  Outputs outputs = make_outputs(item, specs, kReferencePoison);
  stage.reference(item, outputs);
  return outputs;
}

std::optional<RunOutputs> KernelRunner::twice_if_hung(
    const std::function<std::optional<RunOutputs>()>& run) {
  auto first = run();
  if (limit_ == LimitOf::kProcessorTime || !first || first->status != device::RunStatus::kHung)
    return first;
  try {
    auto second = run();
    if (second && second->status == device::RunStatus::kHung)
      second->message += "; the second of two runs";
    return second;
  } catch (const device::Unavailable&) {
    first->is_lost = true;
    return first;
  }
}

RunOutputs KernelRunner::run(const Stage& stage, const Case& item,
                             std::span<const OutputSpec> specs) {
  return *twice_if_hung([&] { return run_once(stage, item, specs); });
}

std::optional<RunOutputs> KernelRunner::run_after(const Stage& stage, const Case& earlier,
                                                  const Case& later) {
  return twice_if_hung([&] { return run_after_once(stage, earlier, later); });
}

RunOutputs KernelRunner::run_once(const Stage& stage, const Case& item,
                                  std::span<const OutputSpec> specs) {
  Outputs outputs = make_outputs(item, specs, kOutputPoison);
  const std::vector<Slot> slots = slots_of(item, specs, outputs);
  place(*backend_, stage, item, slots, launch_.bases);
  if (auto failure = launch_and_check(*backend_, stage, item, slots, launch_.shape))
    return std::move(*failure);
  std::vector<std::byte> image;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Tensor& tensor = *slots[i].tensor;
    image.resize(static_cast<std::size_t>(tensor.layout().stored()) * tensor.element_size());
    backend_->read(i, image);
    if (slots[i].is_output)
      outputs[i - (slots.size() - specs.size())].tensor.set_image(image);
    else if (const auto changed = first_change(tensor, image))
      return crashed(
          fmt::format("the kernel wrote to its input '{}' at byte {}", slots[i].name, *changed));
  }
  return succeeded(std::move(outputs));
}

std::optional<RunOutputs> KernelRunner::run_after_once(const Stage& stage, const Case& earlier,
                                                       const Case& later) {
  const auto first_specs = asked_of(*this, stage.outputs(earlier));
  const auto second_specs = asked_of(*this, stage.outputs(later));
  Outputs first_outputs = make_outputs(earlier, first_specs, kOutputPoison);
  Outputs second_outputs = make_outputs(later, second_specs, kOutputPoison);
  const auto first = slots_of(earlier, first_specs, first_outputs);
  const auto second = slots_of(later, second_specs, second_outputs);
  if (buffer_names(first) != buffer_names(second)) return std::nullopt;

  // Each buffer is as large as the larger of the two steps needs; `contents` follows what it holds.
  std::vector<std::vector<std::byte>> contents;
  std::vector<device::BufferRequest> requests;
  for (std::size_t i = 0; i < first.size(); ++i) {
    if (first[i].tensor->layout().extents.size() > 1 ||
        second[i].tensor->layout().extents.size() > 1)
      return std::nullopt;
    contents.push_back(first[i].tensor->image());
    const auto needed = static_cast<std::size_t>(second[i].tensor->layout().stored()) *
                        second[i].tensor->element_size();
    contents.back().resize(std::max(contents.back().size(), needed), kOutputPoison);
  }
  const auto offsets = base_offsets(*backend_, stage, {&earlier, &later}, first, launch_.bases);
  Placement placement(backend_->devices());
  placement.add(stage, earlier);
  placement.add(stage, later);
  for (std::size_t i = 0; i < first.size(); ++i) {
    std::vector<device::ByteExtent> extents;
    if (!contents[i].empty()) extents.push_back({0, contents[i].size()});
    auto runs = placement.runs(first[i].name, extents, first[i].tensor->element_size());
    requests.push_back(
        {first[i].name, std::move(extents), 16, contents[i], std::move(runs), offsets[i]});
  }
  backend_->place(requests);
  if (auto failure = launch_and_check(*backend_, stage, earlier, first, launch_.shape))
    return failure;

  for (std::size_t i = 0; i < second.size(); ++i) {
    backend_->read(i, contents[i]);
    if (second[i].is_output && !second[i].starts_as_input)
      continue;  // keeps the first step's words
    const std::vector<std::byte> image = second[i].tensor->image();
    std::copy(image.begin(), image.end(), contents[i].begin());
    backend_->write(i, contents[i]);
  }
  if (auto failure = launch_and_check(*backend_, stage, later, second, launch_.shape))
    return failure;

  for (std::size_t i = 0; i < second.size(); ++i) {
    std::vector<std::byte> image(contents[i].size());
    backend_->read(i, image);
    const std::size_t own = static_cast<std::size_t>(second[i].tensor->layout().stored()) *
                            second[i].tensor->element_size();
    const std::size_t kept_from = second[i].is_output ? own : 0;
    if (!std::equal(image.begin() + static_cast<std::ptrdiff_t>(kept_from), image.end(),
                    contents[i].begin() + static_cast<std::ptrdiff_t>(kept_from)))
      return crashed(fmt::format("the second step wrote outside its part of '{}'", second[i].name));
    if (!second[i].is_output) continue;
    // Padding holds words of the first step, which are nobody's: only elements are compared.
    Tensor whole(second[i].tensor->type(), second[i].tensor->layout());
    whole.set_image(std::span(image).first(own));
    copy_elements(whole, second_outputs[i - (second.size() - second_specs.size())].tensor);
  }
  return succeeded(std::move(second_outputs));
}

CaseResult judge_case(const Stage& stage, const Case& item, const JudgeOptions& options) {
  CaseResult result{.stage = item.stage,
                    .title = item.title,
                    .contract = item.contract.text(),
                    .line = item.line};
  if (!item.line.empty()) result.repro = fmt::format("monoref replay '{}'", item.line);
  for (Runner* runner : options.runners) runner->set_launch(options.launch);
  tell_step(options, "reference", false);
  try {
    const std::string defect = defect_of(item);
    result.refusal_was_expected = defect != "none";
    const auto specs = stage.outputs(item);
    const Outputs expected = run_reference(stage, item, specs);
    if (result.refusal_was_expected) {
      result.runs.push_back(
          {.runner = "reference",
           .verdict = Verdict::kWrong,
           .message = fmt::format("accepted an input with the defect '{}'", defect)});
      return result;
    }
    if (!item.expected.empty()) result.runs.push_back(compare_stored(item, specs, expected));
    if (options.properties)
      check_properties(
          stage, item, expected, nullptr,
          [&](const Case& variant) { return evaluate_reference(stage, variant); }, options, result);
    for (Runner* runner : options.runners)
      if (takes(*runner, stage, item.contract))
        judge_runner(*runner, stage, item, specs, expected, options, result);
  } catch (const Refusal& refusal) {
    result.runs.push_back(
        {.runner = "reference", .verdict = Verdict::kRefused, .message = refusal.what()});
  }
  return result;
}

}  // namespace monoref
