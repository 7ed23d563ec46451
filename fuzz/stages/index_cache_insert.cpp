// index_cache_insert: generator, reference and kernel side by side.
#include "reference/stages/index_cache_insert.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

#include "device/launch/index_cache_insert.hpp"
#include "fuzz/inputs.hpp"
#include "fuzz/laws/permute.hpp"
#include "fuzz/laws/untouched.hpp"
#include "fuzz/stages/content.hpp"

namespace monoref {
namespace {

constexpr DType kElementTypes[] = {DType::kUInt8, DType::kFloat8E4M3FN, DType::kBFloat16,
                                   DType::kFloat32};

/// The cache's shape, and the blocks of it that have storage.
struct CacheShape {
  std::int64_t blocks;
  std::int64_t block_size;
  std::int64_t head_dim;
  std::int64_t token_stride;
  std::int64_t block_stride;
  bool far_apart = false;
  std::vector<std::int64_t> stored_blocks;

  Layout layout() const {
    Layout made{{blocks, block_size, head_dim}, {block_stride, token_stride, 1}, {}};
    const std::int64_t block_span = (block_size - 1) * token_stride + head_dim;
    if (head_dim == 0) return made;
    for (const std::int64_t block : stored_blocks) {
      const std::int64_t offset = block * block_stride;
      // The gap between neighbouring blocks is storage too, the padding of the cache, unless the
      // blocks were put far apart.
      const bool neighbour =
          !far_apart && !made.extents.empty() && made.span() - block_span + block_stride == offset;
      if (neighbour)
        made.extents.back().count += block_stride;
      else
        made.extents.push_back({offset, block_span});
    }
    return made;
  }
};

/// Far caches put offsets past 2^31 elements, or block ids past 2^16, with two or three blocks of
/// real memory.
CacheShape cache_shape(const Params& params) {
  CacheShape shape{params["blocks"], params["block_size"], params["head_dim"], 0, 0, false, {}};
  shape.token_stride = shape.head_dim + params["token_gap"];
  shape.block_stride = shape.block_size * shape.token_stride + params["block_gap"];
  const std::string_view spread = params.word("spread");
  if (spread == "far_apart") {
    shape.blocks = 3;
    shape.far_apart = true;
    shape.block_stride += std::int64_t{1} << 30;
    shape.stored_blocks = {0, 1, 2};
  } else if (spread == "many_blocks") {
    shape.blocks = 65538;
    shape.stored_blocks = {0, 1, 65535, 65536, 65537};
  } else {
    shape.stored_blocks.resize(static_cast<std::size_t>(shape.blocks));
    std::iota(shape.stored_blocks.begin(), shape.stored_blocks.end(), 0);
  }
  return shape;
}

/// Every slot with storage, shuffled.
std::vector<std::int64_t> shuffled_slots(const CacheShape& shape, CounterRandom& random) {
  std::vector<std::int64_t> slots;
  for (const std::int64_t block : shape.stored_blocks)
    for (std::int64_t token = 0; token < shape.block_size; ++token)
      slots.push_back(block * shape.block_size + token);
  for (std::size_t i = slots.size(); i > 1; --i)
    std::swap(slots[i - 1],
              slots[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(i)))]);
  return slots;
}

/// A slot that the cache does not have: the first one, some later one, or (where slots are not
/// `narrow`, of 32 bits) one whose low 32 bits name a slot of the cache.
std::int64_t slot_beyond(const CacheShape& shape, bool narrow, CounterRandom& random) {
  const std::int64_t capacity = shape.blocks * shape.block_size;
  switch (random.below(narrow ? 2 : 3)) {
    case 0:
      return capacity;
    case 1:
      return capacity + random.below(1000);
    default:
      return (random.between(1, 3) << 32) + random.below(std::max<std::int64_t>(capacity, 1));
  }
}

std::vector<std::int64_t> make_slots(const Params& params, const CacheShape& shape,
                                     std::int64_t count, bool drop, CounterRandom& random) {
  std::vector<std::int64_t> live = shuffled_slots(shape, random);
  const std::string_view kind = params.word("slots");
  std::vector<std::int64_t> slots;
  for (std::int64_t i = 0; i < count; ++i) {
    bool padding = live.empty() || kind == "padding";
    if (kind == "padding_first") padding = padding || i == 0;
    if (kind == "padding_last") padding = padding || i == count - 1;
    if (kind == "padding_between") padding = padding || i % 2 == 1;
    if (drop && kind == "beyond" && random.once_in(2)) {
      slots.push_back(slot_beyond(shape, params["int32_slots"] != 0, random));
    } else if (padding) {
      slots.push_back(random.once_in(4) ? -random.between(2, 300) : -1);
    } else {
      slots.push_back(live.back());
      live.pop_back();
    }
  }
  return slots;
}

Tensor random_tensor(DType type, const Layout& layout, CounterRandom& random) {
  Tensor tensor(type, layout);
  for (const Extent& extent : layout.extents)
    for (std::byte& byte : tensor.bytes(extent))
      byte = static_cast<std::byte>(random.bits32() & 0xFF);
  return tensor;
}

void plant_defect(Case& item, const std::string& defect, const CacheShape& shape) {
  auto replace = [&](const char* name, Tensor tensor) {
    for (NamedTensor& input : item.inputs)
      if (input.name == name) input.tensor = std::move(tensor);
  };
  const Tensor& keys = item.input("index_k");
  const Tensor& slots = item.input("slot_mapping");
  std::vector<std::int64_t> values(static_cast<std::size_t>(slots.dim(0)), -1);
  if (defect == "slot_beyond_cache") values.back() = shape.blocks * shape.block_size;
  if (defect == "repeated_slot") values.assign(values.size(), 0);
  if (defect == "slot_beyond_cache" || defect == "repeated_slot")
    replace("slot_mapping", strided_vector(DType::kInt64, values, 1));
  if (defect == "slot_count") {
    values.push_back(-1);
    replace("slot_mapping", strided_vector(DType::kInt64, values, 1));
  }
  if (defect == "head_dim")
    replace("index_k", Tensor(keys.type(), Layout::dense({keys.dim(0), keys.dim(1) + 1})));
  if (defect == "element_type")
    replace("index_k", Tensor(keys.type() == DType::kUInt8 ? DType::kBFloat16 : DType::kUInt8,
                              Layout::dense({keys.dim(0), keys.dim(1)})));
}

/// A defect that this case can have: an empty call is accepted whatever its arguments are.
std::string applicable_defect(const Params& params, bool drop) {
  const std::string defect(params.word("defect"));
  if (params["keys"] == 0 || params["blocks"] == 0 || params["head_dim"] == 0) return "none";
  if (drop && (defect == "slot_beyond_cache" || defect == "slot_count")) return "none";
  const std::int64_t slots = drop ? params["keys"] + params["slots_minus_keys"] : params["keys"];
  if (defect == "repeated_slot" && std::min(params["keys"], slots) < 2) return "none";
  return defect;
}

Case build(const Params& params, const Contract& contract, std::uint64_t seed) {
  const bool drop = contract.out_of_range_slot == OutOfRangeSlot::kDrop;
  const CacheShape shape = cache_shape(params);
  const DType type = kElementTypes[params["element"]];
  const std::int64_t keys = params["keys"];
  const std::int64_t slot_count =
      drop ? std::max<std::int64_t>(keys + params["slots_minus_keys"], 0) : keys;
  CounterRandom slot_random(seed, "slot_mapping");
  CounterRandom key_random(seed, "index_k");
  CounterRandom cache_random(seed, "index_cache");
  const std::int64_t step = params["key_step"];
  const Layout key_layout =
      Layout::strided({keys, shape.head_dim}, {shape.head_dim * step + params["key_gap"], step});
  const std::string defect = applicable_defect(params, drop);
  Case item;
  item.scalars = {{"defect", defect}};
  item.inputs = {
      {"index_k", random_tensor(type, key_layout, key_random)},
      {"index_cache", random_tensor(type, shape.layout(), cache_random)},
      {"slot_mapping", strided_vector(params["int32_slots"] != 0 ? DType::kInt32 : DType::kInt64,
                                      make_slots(params, shape, slot_count, drop, slot_random),
                                      params["slot_stride"])}};
  plant_defect(item, defect, shape);
  return item;
}

IndexCacheInsertInput input_of(const Case& item) {
  return {item.input("index_k"), item.input("index_cache"), item.input("slot_mapping"),
          item.contract.out_of_range_slot};
}

std::vector<OutputSpec> outputs(const Case& item) {
  index_cache_insert_shape(input_of(item));
  const Tensor& cache = item.input("index_cache");
  return {{"index_cache", cache.type(), cache.layout(), {"block", "token", "dim"}, "index_cache"}};
}

void reference(const Case& item, Outputs& out) {
  index_cache_insert(input_of(item), {out[0].tensor});
}

template <class Element, class Slot>
void launch_as(const Case& item, const Launcher& launcher) {
  const Tensor& keys = item.input("index_k");
  const Tensor& cache = item.input("index_cache");
  const Tensor& slots = item.input("slot_mapping");
  launcher.enqueue(device::launch::IndexCacheInsert<Element, Slot>{
      .keys = launcher.address<const Element>("index_k"),
      .key_row_stride = keys.layout().strides[0],
      .key_dim_stride = keys.layout().strides[1],
      // Keys without dims are none, whatever the cache has.
      .key_rows = keys.empty() ? 0 : keys.dim(0),
      .slots = launcher.address<const Slot>("slot_mapping"),
      .slot_stride = slots.layout().strides[0],
      .slot_count = slots.dim(0),
      .cache = launcher.address<Element>("out.index_cache"),
      .cache_block_stride = cache.layout().strides[0],
      .cache_token_stride = cache.layout().strides[1],
      .capacity = cache.dim(0) * cache.dim(1),
      .block_size = cache.dim(1),
      .dim = cache.dim(2)});
}

template <class Element>
void launch_sized(const Case& item, const Launcher& launcher) {
  if (item.input("slot_mapping").type() == DType::kInt32)
    launch_as<Element, std::int32_t>(item, launcher);
  else
    launch_as<Element, std::int64_t>(item, launcher);
}

void launch(const Case& item, const Launcher& launcher) {
  switch (item.input("index_cache").element_size()) {
    case 1:
      return launch_sized<std::uint8_t>(item, launcher);
    case 2:
      return launch_sized<std::uint16_t>(item, launcher);
    default:
      return launch_sized<std::uint32_t>(item, launcher);
  }
}

/// Recorded caches are whole buffers [blocks, block size, row stride]; keys fill the first head_dim
/// elements of a row.
Tensor recorded_cache(const Tensor& buffer, std::int64_t head_dim) {
  if (buffer.rank() != 3)
    refuse("index_cache_insert: index_cache has rank {}, must have 3", buffer.rank());
  if (head_dim < 0 || head_dim > buffer.dim(2))
    refuse("index_cache_insert: head_dim is {}, must be 0 to {}", head_dim, buffer.dim(2));
  Layout layout{{buffer.dim(0), buffer.dim(1), head_dim},
                {buffer.dim(1) * buffer.dim(2), buffer.dim(2), 1},
                {}};
  if (!buffer.empty()) layout.extents = {{0, buffer.layout().elements()}};
  Tensor cache(buffer.type(), layout);
  cache.set_image(buffer.image());
  return cache;
}

Case adopt(const Recording&, const RecordedCase& recorded) {
  const Tensor& cache = recorded.input("index_cache");
  const RecordedShape shape{{cache.type()}, {kAnyExtent, kAnyExtent, kAnyExtent}};
  const std::int64_t head_dim =
      recorded.integer("head_dim", 0, recorded.input("index_cache", shape).dim(2));
  Case item;
  item.inputs = {{"index_k", recorded.input("index_k")},
                 {"index_cache", recorded_cache(cache, head_dim)},
                 {"slot_mapping", recorded.input("slot_mapping")}};
  item.expected = {
      {"index_cache",
       recorded_cache(recorded.output("index_cache", {shape.types, cache.dims()}), head_dim),
       std::nullopt}};
  return item;
}

std::vector<std::int64_t> slot_values(const Case& item) {
  const Tensor& slots = item.input("slot_mapping");
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < slots.dim(0); ++i)
    values.push_back(slots.type() == DType::kInt32 ? slots.view<std::int32_t, 1>()(i)
                                                   : slots.view<std::int64_t, 1>()(i));
  return values;
}

/// Rows whose slots the cache has, with these.
std::vector<std::pair<std::int64_t, std::int64_t>> live_rows(const Case& item) {
  const Tensor& keys = item.input("index_k");
  const Tensor& cache = item.input("index_cache");
  const auto slots = slot_values(item);
  std::vector<std::pair<std::int64_t, std::int64_t>> live;
  for (std::int64_t row = 0; row < std::min(keys.dim(0), std::ssize(slots)); ++row) {
    const std::int64_t slot = slots[static_cast<std::size_t>(row)];
    if (!keys.empty() && slot >= 0 && slot < cache.dim(0) * cache.dim(1))
      live.push_back({row, slot});
  }
  return live;
}

laws::OutputRegion owned_elements(const Case& item) {
  std::set<std::int64_t> owned;
  for (const auto& [row, slot] : live_rows(item)) owned.insert(slot);
  return [owned, block_size = item.input("index_cache").dim(1)](std::string_view, laws::Index at) {
    return owned.contains(at[0] * block_size + at[1]);
  };
}

std::optional<std::string> live_rows_are_stored(const Case& item, const Outputs& out,
                                                const Evaluate&) {
  const Layout& keys = item.input("index_k").layout();
  const Layout& cache = out[0].tensor.layout();
  for (const auto& [row, slot] : live_rows(item))
    for (std::int64_t dim = 0; dim < cache.dims[2]; ++dim) {
      const std::int64_t to =
          slot / cache.dims[1] * cache.strides[0] + slot % cache.dims[1] * cache.strides[1] + dim;
      const std::int64_t from = row * keys.strides[0] + dim * keys.strides[1];
      if (laws::bits_at(out[0].tensor, to) != laws::bits_at(item.input("index_k"), from))
        return fmt::format("row {} is not in slot {} at dim {}", row, slot, dim);
    }
  return std::nullopt;
}

bool has_a_slot_for_each_key(const Case& item) {
  return item.input("slot_mapping").dim(0) == item.input("index_k").dim(0);
}

}  // namespace

Stage index_cache_insert_stage() {
  Stage stage;
  stage.name = "index_cache_insert";
  stage.generator_version = 2;
  stage.summary = "scatter of index keys into the key-only cache";
  stage.source = "sparse-pa: insert_index_cache; upstream-semantics section 3.5";
  stage.contracts = {"mono", "mono,out_of_range_slot=drop"};
  stage.dimensions = {
      {"keys", 1, 0, 9, {0, 1, 33}, {}, "key rows"},
      {"slots_minus_keys", 0, -3, 3, {}, {}, "slots more than key rows (contract drop)"},
      {"blocks", 1, 0, 4, {1, 2}, {}, "blocks of the cache"},
      {"block_size", 1, 1, 16, {1, 16, 64, 128}, {}, "tokens a block"},
      {"head_dim", 1, 0, 40, {1, 16, 33, 40, 64, 96, 128, 132}, {}, "elements of a key"},
      Dimension::choice("element", {"uint8", "float8_e4m3fn", "bfloat16", "float32"},
                        "element type"),
      {"key_gap", 0, 0, 8, {0, 4, 16}, {}, "elements between key rows"},
      {"key_step", 1, 1, 2, {}, {}, "stride of a key's elements"},
      {"token_gap", 0, 0, 8, {0, 4, 16}, {}, "elements between tokens of the cache"},
      {"block_gap", 0, 0, 64, {0, 16}, {}, "elements between blocks of the cache"},
      Dimension::choice("spread", {"near", "far_apart", "many_blocks"}, "where the blocks lie"),
      {"int32_slots", 0, 0, 1, {}, {}, "slots of 32 bits"},
      {"slot_stride", 1, 1, 3, {}, {}, "stride of the slots"},
      Dimension::choice(
          "slots",
          {"live", "padding_first", "padding_last", "padding_between", "padding", "beyond"},
          "what the slots are"),
      defect_dimension(
          11, {"slot_beyond_cache", "repeated_slot", "slot_count", "head_dim", "element_type"}),
  };
  const std::vector<DType> words{DType::kUInt8,      DType::kFloat8E4M3FN,   DType::kFloat8E4M3FNUZ,
                                 DType::kFloat8E5M2, DType::kFloat8E5M2FNUZ, DType::kFloat8E8M0,
                                 DType::kBFloat16,   DType::kFloat32,        DType::kInt32};
  // An empty call is accepted whatever its other sizes are.
  stage.inputs = {
      {"index_k", words, {"keys", "dims of a key"}, InputStorage::kStrided},
      {"index_cache", words, {"blocks", "block size", "dims of the cache"}, InputStorage::kCache},
      {"slot_mapping", {DType::kInt32, DType::kInt64}, {"slots"}, InputStorage::kStrided}};
  stage.build = build;
  stage.outputs = outputs;
  stage.reference = reference;
  stage.launch = launch;
  stage.recordings = {"index_cache_insert"};
  stage.adopt = adopt;
  stage.properties = {
      {"stored", "live rows are in their slots", live_rows_are_stored},
      laws::untouched("whole_storage", "nothing but the live rows' slots changes",
                      {{"index_cache"}}, owned_elements),
      laws::permute({.inputs = {{"index_k"}, {"slot_mapping"}},
                     .applies = has_a_slot_for_each_key,
                     .outputs_follow = false,
                     .statement = "the order of the rows does not matter"}),
  };
  return stage;
}

}  // namespace monoref
