// fp8_attention_partition: generator, reference and kernel side by side.
#include "reference/stages/fp8_attention_partition.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>

#include "device/launch/fp8_attention_partition.hpp"
#include "fuzz/inputs.hpp"
#include "fuzz/laws/definition.hpp"
#include "fuzz/laws/ignores.hpp"
#include "fuzz/laws/permute.hpp"
#include "fuzz/laws/scale.hpp"
#include "fuzz/stages/content.hpp"
#include "fuzz/stages/floats.hpp"
#include "fuzz/stages/kv_content.hpp"
#include "fuzz/stages/step_rows.hpp"
#include "reference/rules/fp8_rules.hpp"

namespace monoref {
namespace {

constexpr std::int64_t kBlock = 128;
constexpr std::int64_t kPage = 16;
constexpr std::int64_t kMostGroup = 16;  ///< query heads of a K/V head
constexpr std::int64_t kPagesPerBlock = 8;

/// Sizes of a case. The pool is what selections choose from.
struct Sizes {
  std::int64_t rows, kv_heads, group, head_dim, slots, pool;

  explicit Sizes(const Params& params)
      : rows(params["rows"]),
        kv_heads(params["kv_heads"]),
        group(params["group"]),
        head_dim(16 * params["dim_units"]),
        slots(params["slots"]),
        pool(slots + params["unselected"]) {}
};

/// The selection of every row and kv head.
struct Selections {
  std::vector<std::int32_t> blocks;    ///< [rows, kv_heads, slots], physical
  std::vector<std::int32_t> contexts;  ///< [rows, kv_heads]
};

Selections make_selections(const Params& params, const Sizes& sizes,
                           const std::vector<std::int32_t>& pool, CounterRandom& random) {
  Selections made;
  made.contexts = make_lengths(static_cast<Lengths>(params["contexts"]),
                               sizes.rows * sizes.kv_heads, sizes.slots * kBlock, 1, random);
  for (std::size_t i = 0; i < made.contexts.size(); ++i) {
    std::vector<std::int32_t> shuffled = pool;
    for (std::int64_t slot = 0; slot < sizes.slots; ++slot) {
      const auto from = static_cast<std::size_t>(
          slot + random.below(static_cast<std::int64_t>(shuffled.size()) - slot));
      std::swap(shuffled[static_cast<std::size_t>(slot)], shuffled[from]);
      made.blocks.push_back(shuffled[static_cast<std::size_t>(slot)]);
    }
  }
  return made;
}

/// What a table entry past the context may hold: nobody looks.
std::int32_t unused_page(std::string_view kind, CounterRandom& random) {
  constexpr std::int32_t kWords[] = {-1, 1 << 30, INT32_MIN, INT32_MAX};
  return kind == "zero" ? 0 : kWords[random.below(4)];
}

Tensor make_table(const Params& params, const Sizes& sizes, const Selections& selections,
                  std::int64_t stride, CounterRandom& random) {
  const std::int64_t pages = sizes.slots * kPagesPerBlock;
  const std::int64_t row = pages + params["table_gap"];
  Tensor tensor(DType::kInt32, Layout::strided({sizes.rows, sizes.kv_heads, pages},
                                               {sizes.kv_heads * row, row, 1}));
  tensor.fill_bytes(std::byte{0x01});
  auto table = tensor.view<std::int32_t, 3>();
  for (std::int64_t r = 0; r < sizes.rows; ++r)
    for (std::int64_t h = 0; h < sizes.kv_heads; ++h) {
      const std::int64_t at = r * sizes.kv_heads + h;
      for (std::int64_t page = 0; page < pages; ++page) {
        const std::int64_t block =
            selections.blocks[static_cast<std::size_t>(at * sizes.slots + page / kPagesPerBlock)];
        const bool used = page * kPage < selections.contexts[static_cast<std::size_t>(at)];
        table(r, h, page) = used ? static_cast<std::int32_t>(block * stride + page % kPagesPerBlock)
                                 : unused_page(params.word("unused_pages"), random);
      }
    }
  return tensor;
}

/// Keys that some selection reaches, as (kv head, slot).
std::set<std::pair<std::int64_t, std::int64_t>> owned_keys(const Sizes& sizes,
                                                           const Selections& selections) {
  std::set<std::pair<std::int64_t, std::int64_t>> owned;
  for (std::size_t at = 0; at < selections.contexts.size(); ++at)
    for (std::int64_t key = 0; key < selections.contexts[at]; ++key)
      owned.insert({static_cast<std::int64_t>(at) % sizes.kv_heads,
                    selections.blocks[at * static_cast<std::size_t>(sizes.slots) +
                                      static_cast<std::size_t>(key / kBlock)] *
                            kBlock +
                        key % kBlock});
  return owned;
}

KvPageShape page_shape(const Contract& contract, const Sizes& sizes, std::int64_t blocks) {
  return {.layout = contract.kv_layout,
          .blocks = blocks,
          .kv_heads = sizes.kv_heads,
          .head_dim = sizes.head_dim};
}

/// What elements of K and V look like; the words of `codes_dimension`.
enum class Codes : std::uint8_t {
  kAny,     ///< numbers
  kCoarse,  ///< three powers of 2
  kZero,
  kSpecial,  ///< numbers, and a NaN here and there
};
Dimension codes_dimension(std::string_view name, std::string_view meaning) {
  return Dimension::choice(name, {"any", "coarse", "zero", "special"}, meaning);
}

std::uint8_t element_code(Codes kind, const FloatFormat& format, CounterRandom& random) {
  if (kind == Codes::kCoarse) return static_cast<std::uint8_t>(0x30 + 8 * random.below(3));
  if (kind == Codes::kZero) return 0;
  return draw_code(format, kind == Codes::kSpecial && random.once_in(512), random);
}

/// Caches whose unowned bytes are NaN, or, where V past the context counts, mostly numbers.
class Caches {
 public:
  Caches(const Contract& contract, const KvPageShape& shape, const std::vector<std::int32_t>& pool)
      : contract_(contract), shape_(shape) {
    const Layout dense = Layout::dense({shape.blocks, shape.block_page_stride(), shape.kv_heads,
                                        shape.head_dim * shape.page_size});
    std::vector<std::int32_t> stored = pool;
    stored.push_back(0);  // what a zero in a table names; far blocks alone would be one long run
    const std::int64_t block = shape.block_page_stride() * shape.page_bytes();
    const Layout layout{dense.dims, dense.strides, stored_blocks(stored, block, block)};
    k_ = Tensor(fp8_dtype(contract), layout);
    v_ = Tensor(fp8_dtype(contract), layout);
  }

  void fill(const std::set<std::pair<std::int64_t, std::int64_t>>& owned, const Params& params,
            CounterRandom& random) {
    fill_unowned(k_, random);
    fill_unowned(v_, random);
    const FloatFormat& format = float_format(k_.type());
    const auto k_content = static_cast<Codes>(params["k_content"]);
    const auto v_content = static_cast<Codes>(params["v_content"]);
    for (const auto& [head, slot] : owned) {
      const KeyBytes key(shape_, slot, head);
      for (std::int64_t d = 0; d < shape_.head_dim; ++d) {
        k_at(key, d) = std::byte{element_code(k_content, format, random)};
        v_at(key, d) = std::byte{element_code(v_content, format, random)};
      }
    }
    if (params["mirrored"] != 0) mirror(owned);
  }

  void add_to(Case& item) && {
    item.inputs.push_back({"k_cache", std::move(k_)});
    if (shape_.layout == KvLayout::kDense) item.inputs.push_back({"v_cache", std::move(v_)});
  }

 private:
  std::byte& k_at(const KeyBytes& key, std::int64_t dim) { return k_.base()[key.k(dim)]; }
  std::byte& v_at(const KeyBytes& key, std::int64_t dim) {
    Tensor& cache = shape_.layout == KvLayout::kDense ? v_ : k_;
    return cache.base()[shape_.v_view_offset() + key.v(dim)];
  }

  /// Every other wave repeats the keys of the one before it from the last to the first, with values
  /// of the other sign: what is left of the sums is their roundings, so that their order shows.
  void mirror(const std::set<std::pair<std::int64_t, std::int64_t>>& owned) {
    for (const auto& [head, slot] : owned) {
      const std::int64_t from = slot / 64 * 64 + 63 - slot % 64;
      if (slot % 64 < 32 || !owned.contains({head, from})) continue;
      const KeyBytes key(shape_, slot, head), other(shape_, from, head);
      for (std::int64_t d = 0; d < shape_.head_dim; ++d) {
        k_at(key, d) = k_at(other, d);
        const std::byte value = v_at(other, d);
        v_at(key, d) = value == std::byte{0} ? value : value ^ std::byte{0x80};
      }
    }
  }

  void fill_unowned(Tensor& cache, CounterRandom& random) {
    const bool nan = contract_.v_past_context == VPastContext::kZeroed;
    const FloatFormat& format = float_format(cache.type());
    for (const Extent& extent : cache.layout().extents)
      for (std::byte& byte : cache.bytes(extent))
        byte = nan ? std::byte{static_cast<std::uint8_t>(format.canonical_nan())}
                   : std::byte{draw_code(format, random.once_in(256), random)};
  }

  Contract contract_;
  KvPageShape shape_;
  Tensor k_;
  Tensor v_;
};

void add_scales(Case& item, const Params& params, const Sizes& sizes, CounterRandom& random) {
  const std::string_view kind = params.word("scales");
  if (kind == "absent") return;
  const auto draw = [&] {
    if (kind == "ones") return std::bit_cast<std::uint32_t>(1.0f);
    const float power = std::ldexp(1.0f, static_cast<int>(random.between(-3, 3)));
    return std::bit_cast<std::uint32_t>(kind == "powers" ? power : power * 1.1f);
  };
  const Layout layout = Layout::dense({sizes.kv_heads});
  item.inputs.push_back({"k_scale", drawn_tensor(DType::kFloat32, layout, draw)});
  item.inputs.push_back({"v_scale", drawn_tensor(DType::kFloat32, layout, draw)});
}

void plant_defect(Case& item, const std::string& defect) {
  if (defect == "context_beyond_table") {
    const Tensor& contexts = item.input("sparse_context_lens");
    Tensor longer = contexts;
    longer.view<std::int32_t, 2>()(0, 0) =
        static_cast<std::int32_t>(item.input("sparse_block_table").dim(2) * kPage + 1);
    replace_input(item, "sparse_context_lens", std::move(longer));
  } else if (defect == "page_beyond_cache") {
    Tensor table = item.input("sparse_block_table");
    table.view<std::int32_t, 3>()(0, 0, 0) = INT32_MAX;
    replace_input(item, "sparse_block_table", std::move(table));
    Tensor contexts = item.input("sparse_context_lens");
    contexts.view<std::int32_t, 2>()(0, 0) = 1;
    replace_input(item, "sparse_context_lens", std::move(contexts));
  } else if (defect == "bf16_cache") {
    for (const char* name : {"k_cache", "v_cache"})
      if (item.find_input(name) != nullptr)
        replace_input(item, name, Tensor(DType::kBFloat16, item.input(name).layout()));
  }
}

/// Far ids put pages past 2^31 bytes; the ones around 2^16 differ above bit 15 of a page id.
std::int64_t id_limit(const Params& params, const Contract& contract, const Sizes& sizes) {
  if (params.word("table_ids") != "large") return std::int64_t{1} << 17;
  const KvPageShape one = page_shape(contract, sizes, 1);
  return (std::int64_t{1} << 31) / (one.block_page_stride() * one.page_bytes()) + 8;
}

Case build(const Params& params, const Contract& contract, std::uint64_t seed) {
  const Sizes sizes(params);
  CounterRandom select_random(seed, "selections");
  CounterRandom pool_random(seed, "pool");
  CounterRandom query_random(seed, "q");
  CounterRandom cache_random(seed, "caches");
  CounterRandom scale_random(seed, "scales");
  std::vector<std::int32_t> pool =
      make_block_ids(static_cast<TableIds>(params["table_ids"]), sizes.pool,
                     id_limit(params, contract, sizes), pool_random);
  std::sort(pool.begin(), pool.end());
  pool.erase(std::unique(pool.begin(), pool.end()), pool.end());
  while (static_cast<std::int64_t>(pool.size()) < sizes.slots) pool.push_back(pool.back() + 1);
  const Selections selections = make_selections(params, sizes, pool, select_random);
  const KvPageShape shape = page_shape(contract, sizes, pool.back() + 1);
  const std::int64_t heads = sizes.kv_heads * sizes.group;
  const std::int64_t q_gap = params["q_gap"];
  const auto kind = static_cast<Floats>(params["q_content"]);
  constexpr double kScales[] = {0.08838834764831845, 1.0, 0x1p-6, 0.3};
  const std::string defect = sizes.rows == 0 ? "none" : std::string(params.word("defect"));
  Case item;
  item.scalars = {{"sm_scale", kScales[params["sm_scale"]]}, {"defect", defect}};
  item.inputs = {{"q", drawn_tensor(DType::kBFloat16,
                                    Layout::strided({sizes.rows, heads, sizes.head_dim},
                                                    {heads * (sizes.head_dim + q_gap) + q_gap,
                                                     sizes.head_dim + q_gap, 1}),
                                    [&] { return draw_bf16(kind, query_random); })},
                 {"sparse_block_table",
                  make_table(params, sizes, selections, shape.block_page_stride(), select_random)},
                 {"sparse_context_lens", padded_rows(DType::kInt32, sizes.rows, sizes.kv_heads,
                                                     params["table_gap"], selections.contexts)}};
  Caches caches(contract, shape, pool);
  caches.fill(owned_keys(sizes, selections), params, cache_random);
  std::move(caches).add_to(item);
  add_scales(item, params, sizes, scale_random);
  plant_defect(item, defect);
  return item;
}

View<const float, 1> scale_of(const Case& item, const char* name) {
  const Tensor* scale = item.find_input(name);
  return scale == nullptr ? View<const float, 1>{} : scale->view<float, 1>();
}

const Tensor& v_cache_of(const Case& item) {
  const Tensor* dense = item.find_input("v_cache");
  return dense == nullptr ? item.input("k_cache") : *dense;
}

Fp8AttentionPartitionInput input_of(const Case& item) {
  return {item.input("q").view<std::uint16_t, 3>(),
          item.input("sparse_block_table").view<std::int32_t, 3>(),
          item.input("sparse_context_lens").view<std::int32_t, 2>(),
          {item.input("k_cache"), v_cache_of(item), scale_of(item, "k_scale"),
           scale_of(item, "v_scale")},
          item.real("sm_scale"),
          item.contract};
}

/// What the kernel has beside the reference's sizes: pages of 16 keys, blocks of 128, at most 16
/// query heads of a K/V head, and scales of both sides or of none.
void check_kernel_sizes(const Case& item) {
  const Fp8AttentionPartitionInput input = input_of(item);
  const KvPageShape shape =
      attention_cache_shape("fp8_attention_partition", input.caches, input.q.dim(2), item.contract);
  require_page16_caches("fp8_attention_partition", shape);
  if (input.q.dim(1) > kMostGroup * shape.kv_heads)
    refuse("fp8_attention_partition: q has {} heads, must have at most {} for each of {} kv heads",
           input.q.dim(1), kMostGroup, shape.kv_heads);
  if ((item.find_input("k_scale") == nullptr) != (item.find_input("v_scale") == nullptr))
    refuse("fp8_attention_partition: there is a {} alone, must be both k_scale and v_scale or none",
           item.find_input("k_scale") == nullptr ? "v_scale" : "k_scale");
}

std::vector<OutputSpec> outputs(const Case& item) {
  const Fp8AttentionPartitionShape shape = fp8_attention_partition_shape(input_of(item));
  check_kernel_sizes(item);
  const auto dense = [](const auto& dims) {
    return Layout::dense(std::vector<std::int64_t>(dims.begin(), dims.end()));
  };
  return {{"o", DType::kBFloat16, dense(shape.o), {"row", "partition", "head", "dim"}, ""},
          {"m", DType::kFloat32, dense(shape.m), {"row", "partition", "head"}, ""},
          {"l", DType::kFloat32, dense(shape.m), {"row", "partition", "head"}, ""}};
}

void reference(const Case& item, Outputs& out) {
  fp8_attention_partition_fast(
      input_of(item), {out[0].tensor.view<std::uint16_t, 4>(), out[1].tensor.view<float, 3>(),
                       out[2].tensor.view<float, 3>()});
}

/// What the kernel multiplies p by.
float largest_p(const Contract& contract) {
  return contract.p_scale == PScale::kOne ? 1.0f : fp8_maximum(contract);
}

void launch(const Case& item, const Launcher& launcher) {
  const Fp8AttentionPartitionInput input = input_of(item);
  const KvPageShape shape =
      attention_cache_shape("fp8_attention_partition", input.caches, input.q.dim(2), item.contract);
  const std::int64_t keys = input.sparse_block_table.dim(2) * kPage;
  launcher.enqueue(device::launch::Fp8AttentionPartition{
      .q = launcher.address<const std::uint16_t>("q"),
      .q_row_stride = input.q.stride(0),
      .q_head_stride = input.q.stride(1),
      .k_cache = launcher.address<const std::uint8_t>("k_cache"),
      .v_cache =
          launcher.address<const std::uint8_t>(launcher.has("v_cache") ? "v_cache" : "k_cache"),
      .pages = shape.v_view_pages(),
      .page_table = launcher.address<const std::int32_t>("sparse_block_table"),
      .table_row_stride = input.sparse_block_table.stride(0),
      .table_head_stride = input.sparse_block_table.stride(1),
      .context_lens = launcher.address<const std::int32_t>("sparse_context_lens"),
      .context_row_stride = input.sparse_context_lens.stride(0),
      .context_head_stride = input.sparse_context_lens.stride(1),
      .k_scale = launcher.address_or_null<const float>("k_scale"),
      .v_scale = launcher.address_or_null<const float>("v_scale"),
      .scale_stride = launcher.has("k_scale") ? 1 : 0,
      .o = launcher.address<std::uint16_t>("out.o"),
      .m = launcher.address<float>("out.m"),
      .l = launcher.address<float>("out.l"),
      .rows = input.q.dim(0),
      .kv_heads = shape.kv_heads,
      .group = input.q.dim(1) / shape.kv_heads,
      .head_dim = shape.head_dim,
      .partitions = (keys + kPartitionKeys - 1) / kPartitionKeys,
      .sides = shape.layout == KvLayout::kInterleaved ? 2 : 1,
      .sm_scale = static_cast<float>(input.sm_scale),
      .largest = largest_p(item.contract),
      .masked_values = option(item.contract.v_past_context),
      .encoding = option(item.contract.fp8_encoding),
      .overflow = option(item.contract.fp8_overflow)});
}

/// Every value 1 and every score 0: l counts the keys, and o is 1 (bug case F07).
std::optional<std::string> mass_is_one(const Case& item, const Outputs&, const Evaluate& evaluate) {
  Case flat = item;
  for (NamedTensor& input : flat.inputs) {
    if (input.name == "q") input.tensor.fill_bytes(std::byte{0});
    const bool fnuz = item.contract.fp8_encoding == Fp8Encoding::kFnuz;
    if (input.name == "k_cache" || input.name == "v_cache")
      input.tensor.fill_bytes(fnuz ? std::byte{0x40} : std::byte{0x38});
  }
  std::erase_if(flat.inputs, [](const NamedTensor& input) {
    return input.name == "k_scale" || input.name == "v_scale";
  });
  const Outputs outcome = evaluate(flat);
  const auto contexts = item.input("sparse_context_lens").view<std::int32_t, 2>();
  const auto o = output(outcome, "o").view<std::uint16_t, 4>();
  const auto l = output(outcome, "l").view<float, 3>();
  const std::int64_t group = o.dim(2) / std::max<std::int64_t>(contexts.dim(1), 1);
  for (std::int64_t row = 0; row < o.dim(0); ++row)
    for (std::int64_t part = 0; part < o.dim(1); ++part)
      for (std::int64_t head = 0; head < o.dim(2); ++head) {
        const std::int64_t keys =
            std::clamp<std::int64_t>(contexts(row, head / group) - part * kPartitionKeys, 0, 256);
        if (l(row, part, head) != static_cast<float>(keys == 0 ? 256 : keys))
          return fmt::format("row {}, partition {}: l is {} for {} keys at score 0", row, part,
                             l(row, part, head), keys);
        for (std::int64_t d = 0; d < o.dim(3); ++d)
          if (o(row, part, head, d) != (keys == 0 ? 0x0000 : 0x3F80))
            return fmt::format("row {}, partition {}: o has code {:04x} for {} values of 1", row,
                               part, o(row, part, head, d), keys);
      }
  return std::nullopt;
}

/// Table entries past the context. (Memory that no key owns is NaN in the case itself.)
laws::Region unused_entries(const Case& item) {
  const auto contexts = item.input("sparse_context_lens").view<std::int32_t, 2>();
  return [contexts](laws::Index at) { return at[2] * kPage >= contexts(at[0], at[1]); };
}

bool has_scales(const Case& item) {
  return item.find_input("k_scale") != nullptr;
}

void define(const Case& item, Outputs& out) {
  fp8_attention_partition(input_of(item),
                          {out[0].tensor.view<std::uint16_t, 4>(), out[1].tensor.view<float, 3>(),
                           out[2].tensor.view<float, 3>()});
}

/// A dot and a sum for every key that the table has room for.
std::int64_t work(const Case& item) {
  return 2 * item.input("q").layout().elements() * item.input("sparse_block_table").dim(2) * kPage;
}

}  // namespace

Stage fp8_attention_partition_stage() {
  Stage stage;
  stage.name = "fp8_attention_partition";
  stage.summary = "partial attention of each row over 256 keys of its page table";
  stage.source = "mono-decode section 6; upstream-semantics sections 3.4 and 6.1";
  stage.contracts = {"mono",
                     "mono,kv_layout=dense",
                     "mono,p_scale=one",
                     "mono,v_past_context=kept",
                     "mono,fp8_overflow=saturate",
                     "mono,kv_layout=dense,fp8_encoding=e4m3fnuz,fp8_max=240"};
  stage.check_contract = check_partition_contract;
  stage.dimensions = {
      {"rows", 1, 0, 3, {0, 1, 2}, {}, "query rows"},
      {"kv_heads", 1, 1, 2, {1, 1}, {}, "K/V heads"},
      {"group", 1, 1, 6, {1, 4, 8, 16}, {}, "query heads of a K/V head"},
      {"dim_units", 1, 1, 4, {1, 8}, {}, "elements of a head, in sixteens"},
      {"slots", 1, 1, 3, {1, 2, 3, 16}, {}, "blocks that a selection holds"},
      {"unselected", 0, 0, 3, {}, {}, "blocks of the cache more than a selection holds"},
      {"table_gap", 0, 0, 3, {}, {}, "elements between rows of table and contexts"},
      {"q_gap", 0, 0, 3, {}, {}, "elements between queries"},
      {"sm_scale", 0, 0, 3, {}, {}, "which scale of the scores"},
      Dimension::choice("scales", {"absent", "ones", "powers", "odd"}, "scales of K and V"),
      floats_dimension("q_content", "queries"),
      codes_dimension("k_content", "keys"),
      codes_dimension("v_content", "values"),
      {"mirrored", 0, 0, 1, {}, {}, "values cancel, so that the order of sums shows"},
      Dimension::choice("unused_pages", {"zero", "poison"}, "table entries past the context"),
      [] {
        Dimension contexts = lengths_dimension();
        contexts.name = "contexts";
        contexts.meaning = "contexts of the rows and K/V heads";
        return contexts;
      }(),
      table_ids_dimension(),
      defect_dimension(11, {"context_beyond_table", "page_beyond_cache", "bf16_cache"}),
  };
  stage.inputs = {
      {"q", {DType::kBFloat16}, {"rows", "heads", "head dim"}, InputStorage::kNested},
      {"sparse_block_table", {DType::kInt32}, {"rows", "kv heads", "pages"}, InputStorage::kNested},
      {"sparse_context_lens", {DType::kInt32}, {"rows", "kv heads"}, InputStorage::kRows},
      {"k_cache",
       fp8_types(),
       {"blocks", "pages of a block", "kv heads", "elements of a page"},
       InputStorage::kSparse},
      {"v_cache",
       fp8_types(),
       {"blocks", "pages of a block", "kv heads", "elements of a page"},
       InputStorage::kSparse,
       true},
      {"k_scale", {DType::kFloat32}, {"kv heads"}, InputStorage::kDense, true},
      {"v_scale", {DType::kFloat32}, {"kv heads"}, InputStorage::kDense, true}};
  stage.sizes = {{"kv heads", 1, limits::kHeads}, {"head dim", kPage, 128, kPage}};
  stage.scalars = {ScalarSpec::finite("sm_scale")};
  stage.build = build;
  stage.outputs = outputs;
  stage.reference = reference;
  stage.launch = launch;
  stage.has_kernels = [](const Contract& contract) {
    return contract.score_units == ScoreUnits::kNatural &&
           contract.masked_score == MaskedScore::kFinite && contract.v_scale == VScale::kAtEnd;
  };
  stage.properties = {
      laws::permute("row", {"q", "sparse_block_table", "sparse_context_lens"}),
      {"mass", "values of 1 at equal scores give 1, and l counts the keys", mass_is_one},
      // The scale of K is a factor of the scores alone, that of V of o alone (bug case F10).
      laws::scale({.inputs = {{"k_scale", 2, -30, 30}, {"sm_scale", -2, -30, 30}},
                   .outputs = {},
                   .applies = has_scales}),
      laws::scale({.inputs = {{"v_scale", 1, -30, 30}}, .outputs = {{"o"}}}),
      laws::definition({outputs, define, work}),
      laws::ignores("poison_invariance", "table entries past the context change nothing",
                    {{"sparse_block_table", unused_entries}}),
  };
  return stage;
}

}  // namespace monoref
