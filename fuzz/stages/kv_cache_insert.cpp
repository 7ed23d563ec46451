// kv_cache_insert: generator, reference and kernels side by side.
#include "reference/stages/kv_cache_insert.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>

#include "device/launch/kv_cache_insert.hpp"
#include "fuzz/inputs.hpp"
#include "fuzz/laws/ignores.hpp"
#include "fuzz/laws/scale.hpp"
#include "fuzz/laws/untouched.hpp"
#include "fuzz/stages/content.hpp"
#include "fuzz/stages/floats.hpp"
#include "reference/rules/fp8_rules.hpp"

namespace monoref {
namespace {

constexpr std::int64_t kBlock = 128;
constexpr std::int64_t kPage = 16;

bool interleaved(const Contract& contract) {
  return contract.kv_layout == KvLayout::kInterleaved;
}

bool drops(const Contract& contract) {
  return contract.out_of_range_slot == OutOfRangeSlot::kDrop;
}

/// The caches' blocks: how many, and which of them have storage.
struct Blocks {
  std::int64_t count;
  std::vector<std::int64_t> stored;

  explicit Blocks(const Params& params) : count(params["blocks"]) {
    if (params.word("spread") == "many_blocks") {  // page ids past 2^16, and past 2^16 in blocks
      count = 65538;
      stored = {0, 4096, 65537};
      return;
    }
    stored.resize(static_cast<std::size_t>(count));
    std::iota(stored.begin(), stored.end(), 0);
  }
};

/// Runs of storage for the stored blocks, `stride` elements apart and `span` elements long.
std::vector<Extent> extents_of(const Blocks& blocks, std::int64_t stride, std::int64_t span) {
  std::vector<Extent> extents;
  for (const std::int64_t block : blocks.stored) {
    const bool follows =
        !extents.empty() &&
        extents.back().offset + extents.back().count - span + stride == block * stride;
    if (follows)
      extents.back().count += stride;
    else
      extents.push_back({block * stride, span});
  }
  return extents;
}

/// Random bytes of a prime period, so that a case with whole caches stays small in a file and no
/// row, page or block looks like its neighbour.
Tensor random_cache(DType type, Layout layout, CounterRandom& random) {
  std::array<std::byte, 251> period;
  for (std::byte& byte : period) byte = static_cast<std::byte>(random.bits32() & 0xFF);
  Tensor cache(type, std::move(layout));
  std::size_t at = 0;
  for (const Extent& extent : cache.layout().extents)
    for (std::byte& byte : cache.bytes(extent)) byte = period[at++ % period.size()];
  return cache;
}

/// A block's pages follow each other without gaps.
Tensor kv_cache(DType type, const Blocks& blocks, const Contract& contract, std::int64_t heads,
                std::int64_t head_dim, CounterRandom& random) {
  const std::int64_t pages = kBlock / kPage * (interleaved(contract) ? 2 : 1);
  const std::int64_t page = heads * head_dim * kPage;
  const Layout layout{{blocks.count, pages, heads, head_dim * kPage},
                      {pages * page, page, head_dim * kPage, 1},
                      extents_of(blocks, pages * page, pages * page)};
  return random_cache(type, layout, random);
}

Tensor index_cache(DType type, const Blocks& blocks, const Params& params, std::int64_t head_dim,
                   CounterRandom& random) {
  const std::int64_t token = head_dim + params["index_token_gap"];
  const std::int64_t block = kBlock * token + params["index_block_gap"];
  const Layout layout{{blocks.count, kBlock, head_dim},
                      {block, token, 1},
                      extents_of(blocks, block, (kBlock - 1) * token + head_dim)};
  return random_cache(type, layout, random);
}

/// A slot that the cache does not have: the first one, some later one, or one whose low 32 bits
/// name a slot of the cache.
std::int64_t slot_beyond(std::int64_t capacity, CounterRandom& random) {
  switch (random.below(3)) {
    case 0:
      return capacity;
    case 1:
      return capacity + random.below(1000);
    default:
      return (random.between(1, 3) << 32) + random.below(capacity);
  }
}

/// A slot not yet taken; boundaries of pages and blocks are as likely as all others together.
std::int64_t fresh_slot(const Blocks& blocks, std::set<std::int64_t>& taken,
                        CounterRandom& random) {
  for (;;) {
    const auto pick = random.below(static_cast<std::int64_t>(blocks.stored.size()));
    const std::int64_t start = blocks.stored[static_cast<std::size_t>(pick)] * kBlock;
    std::int64_t key = random.below(kBlock);
    if (random.once_in(2))
      key = std::clamp<std::int64_t>(kPage * random.between(0, 8) - random.below(2), 0, kBlock - 1);
    if (taken.insert(start + key).second) return start + key;
  }
}

std::vector<std::int64_t> make_slots(const Params& params, const Blocks& blocks, std::int64_t count,
                                     bool drop, CounterRandom& random) {
  const std::string_view kind = params.word("slots");
  std::set<std::int64_t> taken;
  std::vector<std::int64_t> slots;
  for (std::int64_t i = 0; i < count; ++i) {
    const bool padding = kind == "padding" || (kind == "padding_first" && i == 0) ||
                         (kind == "padding_last" && i == count - 1) ||
                         (kind == "padding_between" && i % 2 == 1);
    if (drop && kind == "beyond" && random.once_in(2))
      slots.push_back(slot_beyond(blocks.count * kBlock, random));
    else if (padding)
      slots.push_back(random.once_in(4) ? -random.between(2, 300) : -1);
    else
      slots.push_back(fresh_slot(blocks, taken, random));
  }
  return slots;
}

/// Scales of K and V.
std::array<double, 2> make_scales(std::string_view kind, CounterRandom& random) {
  constexpr std::array<float, 6> kOdd{3, 5, 7, 0.3f, 11, 0.0999f};
  const auto odd = [&] {
    return double{kOdd[static_cast<std::size_t>(random.below(kOdd.size()))]};
  };
  if (kind == "powers_of_two") return {0.25, 2.0};
  if (kind == "odd") return {odd(), odd()};
  if (kind == "equal") return {7.0, 7.0};
  if (kind == "extreme") return {0x1p-120, 0x1.8p100};
  return {1.0, 1.0};
}

/// A number of the given kind times the scale it will be divided by, so that the kind shows in the
/// quotient.
float scaled_float(Floats kind, double scale, CounterRandom& random) {
  return draw_float(kind, random) * static_cast<float>(scale);
}

std::uint16_t scaled_bf16(Floats kind, double scale, CounterRandom& random) {
  const float value = std::bit_cast<float>(std::uint32_t{draw_bf16(kind, random)} << 16);
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value * static_cast<float>(scale));
  // A NaN of the projection is canonical, and a BF16 cache takes v as bits.
  return value != value ? std::uint16_t{0x7FC0} : static_cast<std::uint16_t>(bits >> 16);
}

std::string applicable_defect(const Params& params, const Contract& contract) {
  std::string defect(params.word("defect"));
  if (params["rows"] == 0 && defect == "slot_beyond_cache") return "none";
  if (params["rows"] < 2 && defect == "repeated_slot") return "none";
  if (drops(contract) && (defect == "slot_beyond_cache" || defect == "slot_count")) return "none";
  return defect;
}

void plant_defect(Case& item, const std::string& defect, const Blocks& blocks) {
  const std::int64_t rows = item.input("k").dim(0);
  std::vector<std::int64_t> slots(static_cast<std::size_t>(rows), -1);
  if (defect == "slot_beyond_cache") slots.back() = blocks.count * kBlock;
  if (defect == "repeated_slot") std::fill(slots.begin(), slots.end(), 0);
  if (defect == "slot_count") slots.push_back(-1);
  if (defect == "slot_beyond_cache" || defect == "repeated_slot" || defect == "slot_count")
    replace_input(item, "slot_mapping", strided_vector(DType::kInt64, slots, 1));
  const Tensor& index = item.input("index_cache");
  if (defect == "index_capacity")
    replace_input(item, "index_cache",
                  Tensor(index.type(), Layout::dense({1, kBlock + 1, index.dim(2)})));
  if (defect == "encoding") {
    const bool fnuz = item.contract.fp8_encoding == Fp8Encoding::kFnuz;
    replace_input(item, "index_cache",
                  Tensor(fnuz ? DType::kFloat8E4M3FN : DType::kFloat8E4M3FNUZ,
                         Layout::dense({1, kBlock, index.dim(2)})));
  }
}

Case build(const Params& params, const Contract& contract, std::uint64_t seed) {
  const Blocks blocks(params);
  const std::int64_t heads = params["heads"];
  const std::int64_t head_dim = kPage * params["head_units"];
  const std::int64_t rows = params["rows"];
  const bool bf16 = params["bf16"] != 0;
  const DType type = bf16 ? DType::kBFloat16 : fp8_dtype(contract);
  const DType index_type = params["bf16_index"] != 0 ? DType::kBFloat16 : fp8_dtype(contract);
  const auto content = static_cast<Floats>(params["content"]);
  CounterRandom scale_random(seed, "scales");
  CounterRandom slot_random(seed, "slot_mapping");
  CounterRandom cache_random(seed, "caches");
  CounterRandom k_random(seed, "k");
  CounterRandom v_random(seed, "v");
  CounterRandom index_random(seed, "index_k");
  const auto scales = make_scales(bf16 ? "unit" : params.word("scales"), scale_random);
  const std::string defect = applicable_defect(params, contract);
  const auto rows_of = [&](std::int64_t count, std::int64_t gap) {
    return Layout::strided({rows, count, head_dim}, {count * head_dim + gap, head_dim, 1});
  };
  const std::int64_t slot_count =
      drops(contract) ? std::max<std::int64_t>(rows + params["slots_minus_rows"], 0) : rows;
  Case item;
  item.contract = contract;
  item.scalars = {{"k_scale", scales[0]},
                  {"v_scale", defect == "scale_zero" ? 0.0 : scales[1]},
                  {"defect", defect}};
  item.inputs = {
      {"k", drawn_tensor(DType::kFloat32, rows_of(heads, params["k_gap"]),
                         [&] {
                           return std::bit_cast<std::uint32_t>(
                               scaled_float(content, scales[0], k_random));
                         })},
      {"v", drawn_tensor(DType::kBFloat16, rows_of(heads, params["v_gap"]),
                         [&] { return scaled_bf16(content, scales[1], v_random); })},
      {"index_k",
       drawn_tensor(
           DType::kFloat32, rows_of(1, params["k_gap"]),
           [&] { return std::bit_cast<std::uint32_t>(draw_float(content, index_random)); })},
      {"slot_mapping",
       strided_vector(DType::kInt64,
                      make_slots(params, blocks, slot_count, drops(contract), slot_random),
                      params["slot_stride"])}};
  if (interleaved(contract)) {
    item.inputs.push_back(
        {"kv_cache", kv_cache(type, blocks, contract, heads, head_dim, cache_random)});
  } else {
    item.inputs.push_back(
        {"k_cache", kv_cache(type, blocks, contract, heads, head_dim, cache_random)});
    item.inputs.push_back(
        {"v_cache", kv_cache(type, blocks, contract, heads, head_dim, cache_random)});
  }
  item.inputs.push_back(
      {"index_cache", index_cache(index_type, blocks, params, head_dim, cache_random)});
  plant_defect(item, defect, blocks);
  return item;
}

KvCacheInsertInput input_of(const Case& item) {
  const bool shared = interleaved(item.contract);
  return {item.input("k").view<float, 3>(),
          item.input("v").view<std::uint16_t, 3>(),
          item.input("index_k").view<float, 3>(),
          item.input("slot_mapping"),
          item.input(shared ? "kv_cache" : "k_cache"),
          item.input(shared ? "kv_cache" : "v_cache"),
          item.input("index_cache"),
          item.real("k_scale"),
          item.real("v_scale"),
          item.contract};
}

std::vector<OutputSpec> outputs(const Case& item) {
  require_page16_caches("kv_cache_insert", kv_cache_insert_shape(input_of(item)));
  std::vector<OutputSpec> specs;
  const auto add = [&](const char* name, std::vector<std::string_view> axes) {
    const Tensor& cache = item.input(name);
    specs.push_back({name, cache.type(), cache.layout(), std::move(axes), name});
  };
  const std::vector<std::string_view> kv_axes{"block", "page", "head", "element"};
  if (interleaved(item.contract)) {
    add("kv_cache", kv_axes);
  } else {
    add("k_cache", kv_axes);
    add("v_cache", kv_axes);
  }
  add("index_cache", {"block", "token", "dim"});
  return specs;
}

void reference(const Case& item, Outputs& out) {
  Tensor& v_cache = interleaved(item.contract) ? out[0].tensor : out[1].tensor;
  kv_cache_insert(input_of(item), {out[0].tensor, v_cache, out.back().tensor});
}

template <class Element>
void launch_kv(const Case& item, const Launcher& launcher, const device::launch::Fp8Codes& codes) {
  const bool shared = interleaved(item.contract);
  const Tensor& k = item.input("k");
  const Tensor& cache = item.input(shared ? "kv_cache" : "k_cache");
  const Tensor& slots = item.input("slot_mapping");
  launcher.enqueue(device::launch::KvCacheInsert<Element>{
      .k = launcher.address<const float>("k"),
      .k_row_stride = k.layout().strides[0],
      .v = launcher.address<const std::uint16_t>("v"),
      .v_row_stride = item.input("v").layout().strides[0],
      .rows = k.dim(0),
      .slots = launcher.address<const std::int64_t>("slot_mapping"),
      .slot_stride = slots.layout().strides[0],
      .slot_count = slots.dim(0),
      .k_cache = launcher.address<Element>(shared ? "out.kv_cache" : "out.k_cache"),
      .v_cache = launcher.address<Element>(shared ? "out.kv_cache" : "out.v_cache"),
      .capacity = cache.dim(0) * kBlock,
      .heads = k.dim(1),
      .head_dim = k.dim(2),
      .sides = shared ? 2 : 1,
      .codes = codes});
}

template <class Element>
void launch_index(const Case& item, const Launcher& launcher,
                  const device::launch::Fp8Codes& codes) {
  const Tensor& keys = item.input("index_k");
  const Tensor& cache = item.input("index_cache");
  const Tensor& slots = item.input("slot_mapping");
  launcher.enqueue(device::launch::IndexKeyInsert<Element>{
      .keys = launcher.address<const float>("index_k"),
      .key_row_stride = keys.layout().strides[0],
      .rows = keys.dim(0),
      .slots = launcher.address<const std::int64_t>("slot_mapping"),
      .slot_stride = slots.layout().strides[0],
      .slot_count = slots.dim(0),
      .cache = launcher.address<Element>("out.index_cache"),
      .cache_block_stride = cache.layout().strides[0],
      .cache_token_stride = cache.layout().strides[1],
      .capacity = cache.dim(0) * cache.dim(1),
      .block_size = cache.dim(1),
      .dim = cache.dim(2),
      .codes = codes});
}

void launch(const Case& item, const Launcher& launcher) {
  device::launch::Fp8Codes codes{.key_source = option(item.contract.key_source),
                                 .encoding = option(item.contract.fp8_encoding),
                                 .overflow = option(item.contract.fp8_overflow)};
  if (item.input("index_cache").element_size() == 1)
    launch_index<std::uint8_t>(item, launcher, codes);
  else
    launch_index<std::uint16_t>(item, launcher, codes);
  if (input_of(item).k_cache.element_size() != 1)
    return launch_kv<std::uint16_t>(item, launcher, codes);
  codes.k_scale = static_cast<float>(item.real("k_scale"));
  codes.v_scale = static_cast<float>(item.real("v_scale"));
  codes.scaling = option(item.contract.kv_scale);
  launch_kv<std::uint8_t>(item, launcher, codes);
}

/// Slots of the rows that take part, in order; -1 for rows that store nothing.
std::vector<std::int64_t> live_slots(const Case& item) {
  const auto slots = item.input("slot_mapping").view<std::int64_t, 1>();
  const std::int64_t capacity = item.input("index_cache").dim(0) * kBlock;
  std::vector<std::int64_t> live;
  for (std::int64_t row = 0; row < std::min(item.input("k").dim(0), slots.dim(0)); ++row)
    live.push_back(slots(row) < capacity ? std::max<std::int64_t>(slots(row), -1) : -1);
  return live;
}

/// The bits of one element of K or V.
std::uint32_t stored_bits(const KvPageShape& shape, const Outputs& out, bool is_v,
                          const KvElement& at) {
  const Tensor& cache =
      out[is_v && shape.layout == KvLayout::kDense ? std::size_t{1} : std::size_t{0}].tensor;
  const std::int64_t byte = is_v ? v_byte(shape, at) + shape.v_view_offset() : k_byte(shape, at);
  std::uint32_t bits = 0;
  std::memcpy(&bits, cache.base() + byte, static_cast<std::size_t>(shape.element_size));
  return bits;
}

/// The same case in the other layout, caches empty; more blocks than the case has are not needed.
Case in_other_layout(const Case& item) {
  Case other = item;
  other.contract.kv_layout = interleaved(item.contract) ? KvLayout::kDense : KvLayout::kInterleaved;
  std::erase_if(other.inputs, [](const NamedTensor& input) {
    return input.name == "kv_cache" || input.name == "k_cache" || input.name == "v_cache";
  });
  const Tensor& cache = item.input(interleaved(item.contract) ? "kv_cache" : "k_cache");
  std::vector<std::int64_t> dims = cache.dims();
  dims[1] = kBlock / kPage * (interleaved(other.contract) ? 2 : 1);
  const Tensor empty(cache.type(), Layout::dense(dims));
  if (interleaved(other.contract)) {
    other.inputs.push_back({"kv_cache", empty});
  } else {
    other.inputs.push_back({"k_cache", empty});
    other.inputs.push_back({"v_cache", empty});
  }
  return other;
}

/// Keys and values read back from an interleaved and from a dense cache are the same.
std::optional<std::string> layouts_agree(const Case& item, const Outputs& out,
                                         const Evaluate& evaluate) {
  const Tensor& cache = out[0].tensor;
  if (cache.layout().extents.size() != 1) return std::nullopt;
  const Case other = in_other_layout(item);
  const Outputs moved = evaluate(other);
  const KvPageShape shape = kv_cache_insert_shape(input_of(item));
  const KvPageShape other_shape = kv_cache_insert_shape(input_of(other));
  const Tensor& k = item.input("k");
  for (const std::int64_t slot : live_slots(item)) {
    if (slot < 0) continue;
    for (std::int64_t head = 0; head < k.dim(1); ++head)
      for (std::int64_t dim = 0; dim < k.dim(2); ++dim)
        for (const bool is_v : {false, true}) {
          const KvElement at{slot, head, dim};
          if (stored_bits(shape, out, is_v, at) != stored_bits(other_shape, moved, is_v, at))
            return fmt::format("{} of slot {}, head {}, dim {} differs", is_v ? "V" : "K", slot,
                               head, dim);
        }
  }
  return std::nullopt;
}

/// Elements that a live slot owns; each is told apart by taking its address to pieces, not by the
/// formula that stores it.
laws::OutputRegion owned_elements(const Case& item) {
  const KvPageShape shape = kv_cache_insert_shape(input_of(item));
  const auto slots = live_slots(item);
  const std::set<std::int64_t> live(slots.begin(), slots.end());
  const Layout layout = item.input(interleaved(item.contract) ? "kv_cache" : "k_cache").layout();
  return [=](std::string_view name, laws::Index at) {
    std::int64_t byte = 0;
    for (std::size_t axis = 0; axis < at.size(); ++axis)
      byte += at[axis] * layout.strides[axis] * shape.element_size;
    std::optional<KvElement> owner;
    if (name != "v_cache") owner = k_element(shape, byte);
    if (!owner && byte >= shape.v_view_offset())
      owner = v_element(shape, byte - shape.v_view_offset());
    return owner && live.contains(owner->slot);
  };
}

/// All but the pages of K.
laws::OutputRegion values_and_index_keys(const Case&, const Outputs&) {
  return [](std::string_view name, laws::Index at) {
    return name == "kv_cache" ? at[1] >= kBlock / kPage : name != "k_cache";
  };
}

bool is_fp8(const Case& item) {
  return input_of(item).k_cache.type() != DType::kBFloat16;
}

}  // namespace

Stage kv_cache_insert_stage() {
  Stage stage;
  stage.name = "kv_cache_insert";
  stage.summary = "keys and values into the page-16 caches, index keys into theirs";
  stage.source = "mono-decode sections 3.7 and 3.8; upstream-semantics sections 3.3 to 3.5";
  stage.contracts = {
      "mono",
      "mono,kv_layout=dense",
      "mono,fp8_overflow=saturate,key_source=unrounded",
      "mono,kv_layout=dense,kv_scale=reciprocal",
      "mono,fp8_encoding=e4m3fnuz",
      "mono,kv_layout=dense,fp8_encoding=e4m3fnuz,fp8_overflow=saturate,kv_scale=reciprocal",
      "mono,out_of_range_slot=drop",
      "mono,kv_layout=dense,out_of_range_slot=drop,key_source=unrounded"};
  stage.dimensions = {
      {"rows", 1, 0, 4, {0, 1, 17}, {}, "tokens"},
      {"slots_minus_rows", 0, -3, 3, {}, {}, "slots more than rows (contract drop)"},
      {"heads", 1, 1, 2, {1, 4}, {}, "K/V heads of the rank"},
      {"head_units", 1, 1, 4, {1, 8}, {}, "head_dim / 16"},
      {"blocks", 1, 1, 2, {1, 2, 3}, {}, "blocks of 128 slots"},
      Dimension::choice("spread", {"near", "many_blocks"}, "which blocks have storage"),
      {"bf16", 0, 0, 1, {0, 0, 0}, {}, "K/V caches of BF16 instead of FP8"},
      {"bf16_index", 0, 0, 1, {0, 0, 0}, {}, "index cache of BF16 instead of FP8"},
      {"k_gap", 0, 0, 8, {0, 1, 4}, {}, "elements between rows of the keys"},
      {"v_gap", 0, 0, 8, {0, 1, 8}, {}, "elements between rows of the values"},
      {"index_token_gap", 0, 0, 8, {0, 4, 16}, {}, "elements between tokens of the index cache"},
      {"index_block_gap", 0, 0, 64, {0, 16}, {}, "elements between blocks of the index cache"},
      {"slot_stride", 1, 1, 3, {}, {}, "stride of the slots"},
      Dimension::choice(
          "slots",
          {"live", "padding_first", "padding_last", "padding_between", "padding", "beyond"},
          "what the slots are"),
      floats_dimension("content", "keys and values, after the scale"),
      Dimension::choice("scales", {"unit", "powers_of_two", "odd", "equal", "extreme"},
                        "scales of K and V (FP8)"),
      defect_dimension(13, {"slot_beyond_cache", "repeated_slot", "slot_count", "index_capacity",
                            "encoding", "scale_zero"}),
  };
  const std::vector<DType> cache{DType::kFloat8E4M3FN, DType::kFloat8E4M3FNUZ, DType::kBFloat16};
  stage.inputs = {
      {"k", {DType::kFloat32}, {"rows", "kv heads", "head dim"}, InputStorage::kRows},
      {"v", {DType::kBFloat16}, {"rows", "kv heads", "head dim"}, InputStorage::kRows},
      {"index_k", {DType::kFloat32}, {"rows", "index heads", "head dim"}, InputStorage::kRows},
      {"slot_mapping", {DType::kInt64}, {"slots"}, InputStorage::kStrided},
      {"index_cache", cache, {"blocks", "block size", "head dim"}, InputStorage::kCache}};
  for (const char* name : {"kv_cache", "k_cache", "v_cache"})
    stage.inputs.push_back({name,
                            cache,
                            {"blocks", "pages of a block", "kv heads", "elements of a page"},
                            InputStorage::kSparse,
                            true});
  stage.sizes = {{"index heads", 1, 1},
                 {"head dim", kPage, limits::kHeadDim, kPage},
                 {"block size", kBlock, kBlock}};
  stage.scalars = {ScalarSpec::positive("k_scale"), ScalarSpec::positive("v_scale")};
  stage.build = build;
  stage.outputs = outputs;
  stage.reference = reference;
  stage.launch = launch;
  stage.properties = {
      {"layout_metamorphic", "interleaved and dense caches read back the same", layouts_agree},
      laws::untouched("whole_storage", "nothing but the live rows' slots changes",
                      {{"kv_cache"}, {"k_cache"}, {"v_cache"}}, owned_elements),
      laws::ignores("sides_apart", "neither V nor index keys depend on K", {{"k"}},
                    {.compared = values_and_index_keys}),
      laws::scale({.inputs = {{"k", 1, -100, 100}, {"k_scale", 1, -125, 125}},
                   .outputs = {},
                   .applies = is_fp8}),
  };
  return stage;
}

}  // namespace monoref
