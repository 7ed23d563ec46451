// page16_rebase: generator, reference and kernel side by side.
#include "reference/stages/page16_rebase.hpp"

#include <algorithm>

#include "device/launch/page16_rebase.hpp"
#include "fuzz/inputs.hpp"
#include "fuzz/stages/content.hpp"

namespace monoref {
namespace {

std::vector<std::int64_t> make_slots(std::string_view kind, std::int64_t count,
                                     CounterRandom& random) {
  std::vector<std::int64_t> slots;
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t slot = random.between(0, 4000);
    if (kind == "boundaries") slot = 128 * random.between(0, 6) + random.between(-1, 1);
    if (kind == "around_2_31") slot = (std::int64_t{1} << 31) + random.between(-300, 300);
    if (kind == "huge") slot = (std::int64_t{1} << 60) + random.between(-300, 300);
    if (kind == "padding" || random.once_in(8))
      slot = random.once_in(4) ? -random.between(1, 300) : -1;
    slots.push_back(slot);
  }
  return slots;
}

Case build(const Params& params, const Contract& contract, std::uint64_t seed) {
  CounterRandom ids(seed, "block_table");
  CounterRandom slot_random(seed, "slot_mapping");
  const std::int64_t rows = params["rows"];
  const std::int64_t width = params["width"];
  auto table =
      make_block_ids(static_cast<TableIds>(params["table_ids"]), rows * width, INT32_MAX / 2, ids);
  for (auto& id : table)
    if (ids.once_in(6)) id = -1;
  // Only a product with two sides can overflow.
  const bool overflow =
      params.word("defect") == "id_overflow" && contract.kv_layout == KvLayout::kInterleaved;
  Case item;
  item.scalars = {{"out_row_gap", params["out_row_gap"]},
                  {"in_place", params["in_place"]},
                  {"defect", std::string(overflow ? "id_overflow" : "none")}};
  if (overflow) {
    table.resize(std::max<std::size_t>(table.size(), 1));
    table.back() = 1 << 30;
    item.inputs = {{"block_table", padded_rows(DType::kInt32, 1,
                                               static_cast<std::int64_t>(table.size()), 0, table)}};
  } else {
    item.inputs = {
        {"block_table", padded_rows(DType::kInt32, rows, width, params["table_row_gap"], table)}};
  }
  item.inputs.push_back(
      {"slot_mapping",
       strided_vector(DType::kInt64,
                      make_slots(params.word("slots"), params["slot_count"], slot_random),
                      params["slot_stride"])});
  return item;
}

Page16RebaseInput table_input(const Case& item) {
  return {item.input("block_table").view<std::int32_t, 2>(), page16_sides(item.contract.kv_layout)};
}

Page16RebaseSlotsInput slots_input(const Case& item) {
  return {item.input("slot_mapping").view<std::int64_t, 1>(), page16_sides(item.contract.kv_layout),
          128};
}

std::vector<OutputSpec> outputs(const Case& item) {
  const auto dims = page16_rebase_shape(table_input(item));
  std::vector<OutputSpec> specs{
      {"block_table",
       DType::kInt32,
       Layout::strided({dims[0], dims[1]}, {dims[1] + row_gap(item, "out_row_gap"), 1}),
       {"row", "column"},
       ""}};
  if (item.integer_or("in_place", 0) != 0) {
    specs[0].starts_as = "block_table";
    specs[0].layout = item.input("block_table").layout();
  }
  if (item.find_input("slot_mapping") != nullptr)
    specs.push_back({"slot_mapping",
                     DType::kInt64,
                     Layout::dense({page16_rebase_slots_shape(slots_input(item))[0]}),
                     {"row"},
                     ""});
  return specs;
}

void reference(const Case& item, Outputs& out) {
  page16_rebase(table_input(item), {out[0].tensor.view<std::int32_t, 2>()});
  if (out.size() > 1)
    page16_rebase_slots(slots_input(item), {out[1].tensor.view<std::int64_t, 1>()});
}

void launch(const Case& item, const Launcher& launcher) {
  const Tensor& table = item.input("block_table");
  const std::int64_t sides = item.contract.kv_layout == KvLayout::kInterleaved ? 2 : 1;
  const std::int64_t table_stride = table.layout().strides[0];
  auto* rebased = launcher.address<std::int32_t>("out.block_table");
  const bool in_place = !launcher.has("block_table");
  launcher.enqueue(device::launch::Page16RebaseTable{
      .block_table = in_place ? rebased : launcher.address<const std::int32_t>("block_table"),
      .table_row_stride = table_stride,
      .rebased = rebased,
      .rebased_row_stride = in_place ? table_stride : table.dim(1) + row_gap(item, "out_row_gap"),
      .rows = table.dim(0),
      .width = table.dim(1),
      .sides = sides});
  const Tensor* slots = item.find_input("slot_mapping");
  if (slots == nullptr) return;
  launcher.enqueue(device::launch::Page16RebaseSlots{
      .slots = launcher.address<const std::int64_t>("slot_mapping"),
      .slot_stride = slots->layout().strides[0],
      .rebased = launcher.address<std::int64_t>("out.slot_mapping"),
      .count = slots->dim(0),
      .sides = sides});
}

Case adopt(const Recording&, const RecordedCase& recorded) {
  Case item;
  item.inputs = recorded.inputs;
  item.expected = {{"block_table", recorded.output("block_table"), std::nullopt}};
  return item;
}

/// A slot keeps its token in the block, blocks stay apart, and the K pages of one block never run
/// into the V pages of another.
std::optional<std::string> slots_keep_their_block(const Case& item, const Outputs& out,
                                                  const Evaluate&) {
  if (item.find_input("slot_mapping") == nullptr) return std::nullopt;
  const auto before = item.input("slot_mapping").view<std::int64_t, 1>();
  const auto after = output(out, "slot_mapping").view<std::int64_t, 1>();
  const std::int64_t span = item.contract.kv_layout == KvLayout::kInterleaved ? 256 : 128;
  for (std::int64_t i = 0; i < before.dim(0); ++i) {
    if (before(i) < 0 ? after(i) != before(i)
                      : after(i) % span != before(i) % 128 || after(i) / span != before(i) / 128)
      return fmt::format("slot {} became {}", before(i), after(i));
  }
  return std::nullopt;
}

}  // namespace

Stage page16_rebase_stage() {
  Stage stage;
  stage.name = "page16_rebase";
  stage.summary = "block tables and slots on the page-16 numbering of packed or dense caches";
  stage.source = "sparse-pa: rebase_block_table_to_page16; upstream-semantics section 3.4";
  stage.contracts = {"mono", "mono,kv_layout=dense"};
  stage.dimensions = {
      {"rows", 1, 0, 5, {0, 1, 33}, {}, "rows of the block table"},
      {"width", 1, 0, 20, {1, 4, 5, 128, 1023}, {}, "columns of the block table"},
      {"table_row_gap", 0, 0, 5, {}, {}, "elements between rows of the block table"},
      {"out_row_gap", 0, 0, 5, {}, {}, "elements between rows of the result"},
      {"in_place", 0, 0, 1, {}, {}, "the table is rebased in its own storage"},
      {"slot_count", 0, 0, 40, {0, 1, 65}, {}, "slots"},
      {"slot_stride", 1, 1, 3, {}, {}, "stride of the slots"},
      Dimension::choice("slots", {"ordinary", "boundaries", "padding", "around_2_31", "huge"},
                        "what the slots are"),
      table_ids_dimension(),
      defect_dimension(9, {"id_overflow"}),
  };
  stage.inputs = {{"block_table", {DType::kInt32}, {"rows", "width"}, InputStorage::kRows},
                  {"slot_mapping", {DType::kInt64}, {"slots"}, InputStorage::kStrided, true}};
  stage.scalars = {ScalarSpec::flag("in_place").or_none(), ScalarSpec::row_gap("out_row_gap")};
  stage.build = build;
  stage.outputs = outputs;
  stage.reference = reference;
  stage.launch = launch;
  stage.recordings = {"page16_rebase"};
  stage.adopt = adopt;
  stage.properties = {{"slots_keep_their_block",
                       "a rebased slot is the same token of the same block",
                       slots_keep_their_block}};
  return stage;
}

}  // namespace monoref
