// kv_page_address: generator, reference and kernel side by side.
#include "reference/stages/kv_page_address.hpp"

#include <algorithm>
#include <map>

#include "device/launch/kv_page_address.hpp"
#include "fuzz/inputs.hpp"
#include "fuzz/stages/content.hpp"
#include "reference/stages/page16_rebase.hpp"

namespace monoref {
namespace {

constexpr std::int64_t kBlock = 128;

KvPageShape shape_of(const Case& item) {
  return {.layout = item.contract.kv_layout,
          .blocks = item.integer("blocks"),
          .kv_heads = item.integer("kv_heads"),
          .head_dim = item.integer("head_dim"),
          .element_size = item.integer("element_size")};
}

std::int64_t make_slot(std::string_view kind, std::int64_t blocks, CounterRandom& random) {
  const std::int64_t capacity = blocks * kBlock;
  if (kind == "padding" || random.once_in(10))
    return random.once_in(3) ? -random.between(1, 400) : -1;
  if (kind == "boundaries")
    return std::clamp<std::int64_t>(16 * random.between(0, capacity / 16) + random.between(-1, 1),
                                    0, capacity - 1);
  if (kind == "last_block") return capacity - 1 - random.below(kBlock);
  return random.below(capacity);
}

Case build(const Params& params, const Contract&, std::uint64_t seed) {
  CounterRandom random(seed, "slot_mapping");
  const std::int64_t element_size = params["bf16"] != 0 ? 2 : 1;
  const std::int64_t unit = 16 / element_size;
  std::vector<std::int64_t> slots;
  for (std::int64_t i = 0; i < params["slot_count"]; ++i)
    slots.push_back(make_slot(params.word("slots"), params["blocks"], random));
  const std::string defect(slots.empty() ? "none" : params.word("defect"));
  if (defect == "slot_beyond_cache") slots.back() = params["blocks"] * kBlock;
  Case item;
  item.scalars = {
      {"blocks", params["blocks"]},
      {"kv_heads", params["kv_heads"]},
      {"head_dim", defect == "head_dim_not_whole" ? unit + 1 : params["head_units"] * unit},
      {"element_size", element_size},
      {"defect", defect}};
  item.inputs = {{"slot_mapping", strided_vector(DType::kInt64, slots, params["slot_stride"])}};
  return item;
}

std::vector<OutputSpec> outputs(const Case& item) {
  const KvPageShape shape = shape_of(item);
  shape.validate();
  const auto slots = item.input("slot_mapping").view<std::int64_t, 1>();
  if (slots.dim(0) * shape.kv_heads * shape.head_dim > limits::kAddressedElements)
    refuse("kv_page_address: slot_mapping has {} slots, with {} heads of {} the limit is {}",
           slots.dim(0), shape.kv_heads, shape.head_dim,
           limits::kAddressedElements / (shape.kv_heads * shape.head_dim));
  for (std::int64_t i = 0; i < slots.dim(0); ++i)
    if (slots(i) >= 0) k_byte(shape, {slots(i), 0, 0});
  const Layout layout = Layout::dense({slots.dim(0), shape.kv_heads, shape.head_dim});
  return {{"k_offset", DType::kInt64, layout, {"row", "head", "dim"}, ""},
          {"v_offset", DType::kInt64, layout, {"row", "head", "dim"}, ""}};
}

/// Offsets from the start of the buffer that holds the side: V's view starts later where it shares.
void reference(const Case& item, Outputs& out) {
  const KvPageShape shape = shape_of(item);
  const auto slots = item.input("slot_mapping").view<std::int64_t, 1>();
  const auto k = out[0].tensor.view<std::int64_t, 3>();
  const auto v = out[1].tensor.view<std::int64_t, 3>();
  for (std::int64_t row = 0; row < slots.dim(0); ++row)
    for (std::int64_t head = 0; head < shape.kv_heads; ++head)
      for (std::int64_t dim = 0; dim < shape.head_dim; ++dim) {
        const KvElement element{slots(row), head, dim};
        k(row, head, dim) = element.slot < 0 ? -1 : k_byte(shape, element);
        v(row, head, dim) = element.slot < 0 ? -1 : v_byte(shape, element) + shape.v_view_offset();
      }
}

void launch(const Case& item, const Launcher& launcher) {
  const Tensor& slots = item.input("slot_mapping");
  launcher.enqueue(device::launch::KvPageAddress{
      .slots = launcher.address<const std::int64_t>("slot_mapping"),
      .slot_stride = slots.layout().strides[0],
      .k_offsets = launcher.address<std::int64_t>("out.k_offset"),
      .v_offsets = launcher.address<std::int64_t>("out.v_offset"),
      .count = slots.dim(0),
      .heads = item.integer("kv_heads"),
      .head_dim = item.integer("head_dim"),
      .element_bytes = item.integer("element_size"),
      .sides = item.contract.kv_layout == KvLayout::kInterleaved ? 2 : 1});
}

/// Different elements of different live slots never share a byte, K and V in one buffer included.
std::optional<std::string> addresses_are_injective(const Case& item, const Outputs& out,
                                                   const Evaluate&) {
  const bool shared = item.contract.kv_layout == KvLayout::kInterleaved;
  const auto slots = item.input("slot_mapping").view<std::int64_t, 1>();
  std::map<std::int64_t, std::tuple<bool, std::int64_t, std::int64_t, std::int64_t>> owner[2];
  for (const bool is_v : {false, true}) {
    const auto offsets = output(out, is_v ? "v_offset" : "k_offset").view<std::int64_t, 3>();
    auto& owners = owner[is_v && !shared ? 1 : 0];
    for (std::int64_t row = 0; row < offsets.dim(0); ++row)
      for (std::int64_t head = 0; head < offsets.dim(1); ++head)
        for (std::int64_t dim = 0; dim < offsets.dim(2); ++dim) {
          const std::int64_t offset = offsets(row, head, dim);
          if (slots(row) < 0) continue;
          const std::tuple place{is_v, slots(row), head, dim};
          const auto [at, fresh] = owners.emplace(offset, place);
          if (!fresh && at->second != place)
            return fmt::format(
                "two elements lie at byte {}; one of them is {} slot {}, head {}, dim {}", offset,
                is_v ? "V" : "K", slots(row), head, dim);
          if (offset < 0 || offset % item.integer("element_size") != 0)
            return fmt::format("byte {} cannot hold an element", offset);
        }
  }
  return std::nullopt;
}

/// Taking the offset apart again gives the slot, head and dim it was made from.
std::optional<std::string> addresses_decode(const Case& item, const Outputs& out, const Evaluate&) {
  const KvPageShape shape = shape_of(item);
  const auto slots = item.input("slot_mapping").view<std::int64_t, 1>();
  const auto k = output(out, "k_offset").view<std::int64_t, 3>();
  const auto v = output(out, "v_offset").view<std::int64_t, 3>();
  for (std::int64_t row = 0; row < slots.dim(0); ++row)
    for (std::int64_t head = 0; head < shape.kv_heads; ++head)
      for (std::int64_t dim = 0; dim < shape.head_dim; ++dim) {
        if (slots(row) < 0) continue;
        const KvElement element{slots(row), head, dim};
        if (k_element(shape, k(row, head, dim)) != element)
          return fmt::format("K byte {} is not slot {}, head {}, dim {}", k(row, head, dim),
                             slots(row), head, dim);
        if (v_element(shape, v(row, head, dim) - shape.v_view_offset()) != element)
          return fmt::format("V byte {} is not slot {}, head {}, dim {}", v(row, head, dim),
                             slots(row), head, dim);
      }
  return std::nullopt;
}

}  // namespace

Stage kv_page_address_stage() {
  Stage stage;
  stage.name = "kv_page_address";
  stage.summary = "slot, head and dim to byte offset in the page-16 K and V caches";
  stage.source = "upstream-semantics section 3.4; mono-decode section 3.8";
  stage.contracts = {"mono", "mono,kv_layout=dense"};
  stage.dimensions = {
      {"slot_count", 1, 0, 8, {0, 1, 33}, {}, "slots"},
      {"slot_stride", 1, 1, 3, {}, {}, "stride of the slots"},
      {"blocks", 1, 1, 6, {1, 2, 65536, 1 << 20, 1 << 30}, {}, "blocks of the cache"},
      {"kv_heads", 1, 1, 4, {1, 2, 4}, {}, "K/V heads of the rank"},
      {"head_units", 1, 1, 4, {2, 4, 8}, {}, "head_dim in units of 16 bytes"},
      {"bf16", 0, 0, 1, {}, {}, "elements of two bytes instead of one"},
      Dimension::choice("slots", {"ordinary", "boundaries", "last_block", "padding"},
                        "what the slots are"),
      defect_dimension(9, {"slot_beyond_cache", "head_dim_not_whole"}),
  };
  stage.inputs = {{"slot_mapping", {DType::kInt64}, {"slots"}, InputStorage::kStrided}};
  stage.scalars = {ScalarSpec::integer("blocks", 1, limits::kExtent),
                   ScalarSpec::integer("kv_heads", 1, limits::kHeads),
                   ScalarSpec::integer("head_dim", 1, limits::kHeadDim),
                   ScalarSpec::integer("element_size", 1, 2)};
  stage.build = build;
  stage.outputs = outputs;
  stage.reference = reference;
  stage.launch = launch;
  stage.properties = {
      {"injectivity", "different elements have different bytes", addresses_are_injective},
      {"bijection", "the offset, taken apart, names its slot, head and dim", addresses_decode},
  };
  return stage;
}

}  // namespace monoref
