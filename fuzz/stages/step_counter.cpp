// step_counter: generator, reference and kernel side by side.
#include "device/launch/step_counter.hpp"
#include "fuzz/inputs.hpp"
#include "fuzz/stage.hpp"
#include "fuzz/stages/content.hpp"
#include "fuzz/stages/floats.hpp"
#include "reference/model/decode_step.hpp"

namespace monoref {
namespace {

/// Of a launch; all but one have nothing to do.
constexpr std::int64_t kMaxBlocks = 1024;

Case build(const Params& params, const Contract&, std::uint64_t seed) {
  CounterRandom random(seed, "counter");
  const std::string_view kind = params.word("counter");
  std::uint32_t counter = random.bits32();
  if (kind == "zero") counter = 0;
  if (kind == "last") counter = 0x7FFFFFFFu;
  if (kind == "minus_one") counter = 0xFFFFFFFFu;
  if (kind == "around_2_16") counter = 0xFFFFu + static_cast<std::uint32_t>(random.below(2));
  const std::string defect(params.word("defect"));
  const std::int64_t length = defect == "two_counters" ? 2 : 1;
  Case item;
  item.scalars = {{"blocks", params["blocks"]}, {"defect", defect}};
  item.inputs = {
      {"counter", drawn_tensor(DType::kInt32, Layout::dense({length}), [&] { return counter; })}};
  return item;
}

std::vector<OutputSpec> outputs(const Case& item) {
  return {{"counter", DType::kInt32, item.input("counter").layout(), {"counter"}, "counter"}};
}

void reference(const Case& item, Outputs& out) {
  out[0].tensor.view<std::int32_t, 1>()(0) =
      next_step(item.input("counter").view<std::int32_t, 1>()(0));
}

void launch(const Case& item, const Launcher& launcher) {
  launcher.enqueue(
      device::launch::StepCounter{.counter = launcher.address<std::int32_t>("out.counter"),
                                  .wanted_blocks = item.integer_or("blocks", 1)});
}

std::optional<std::string> one_more(const Case& item, const Outputs& out, const Evaluate&) {
  const auto before = static_cast<std::uint32_t>(item.input("counter").view<std::int32_t, 1>()(0));
  const auto after = static_cast<std::uint32_t>(output(out, "counter").view<std::int32_t, 1>()(0));
  if (after - before != 1) return fmt::format("{} is followed by {}", before, after);
  return std::nullopt;
}

}  // namespace

Stage step_counter_stage() {
  Stage stage;
  stage.name = "step_counter";
  stage.summary = "the number of the step, once more";
  stage.source = "mono-decode section 2";
  stage.dimensions = {
      {"blocks", 1, 1, 3, {}, {}, "blocks of the launch, of which one thread counts"},
      Dimension::choice("counter", {"zero", "any", "last", "minus_one", "around_2_16"},
                        "the counter before"),
      defect_dimension(9, {"two_counters"}),
  };
  stage.inputs = {{"counter", {DType::kInt32}, {"counters"}}};
  stage.sizes = {{"counters", 1, 1}};
  stage.scalars = {ScalarSpec::integer("blocks", 1, kMaxBlocks).or_none()};
  stage.build = build;
  stage.outputs = outputs;
  stage.reference = reference;
  stage.launch = launch;
  stage.properties = {{"count", "the counter goes up by one, modulo 2^32", one_more}};
  return stage;
}

}  // namespace monoref
