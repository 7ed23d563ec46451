// Part "workspace" of glm5next_indexer: shapes of the gather workspace, and the view of the cache
// that the paged scorer takes. Both are host code: there is nothing to launch.
#include <algorithm>

#include "fuzz/stages/glm5next_indexer.hpp"
#include "fuzz/stages/indexer_content.hpp"
#include "reference/stages/glm5next_indexer.hpp"

namespace monoref {
namespace {

constexpr const char* kShapes[] = {"fp8_values", "fp8_scales", "fp4_values", "fp4_scales"};

std::int64_t key_bytes(const Case& item, IndexerCacheFormat format) {
  const std::int64_t head_dim = item.integer("head_dim");
  return format == IndexerCacheFormat::kFp8 ? head_dim + 4 : head_dim / 2 + head_dim / 32;
}

/// Pages are larger than their keys by `page_gap`; the MXFP4 view goes over the same bytes.
Case build(const Params& params, std::uint64_t seed) {
  CounterRandom random(seed, "workspace");
  const std::int64_t head_dim = params["head_blocks"] * kMxfp4BlockSize;
  const std::int64_t block_size = params["page_keys"];
  std::string defect(params.word("defect"));
  if (defect != "keys_past_page" || block_size == 0) defect = "none";
  const std::int64_t width = head_dim + 4;
  const std::int64_t fp4_width = head_dim / 2 + head_dim / kMxfp4BlockSize;
  Case item;
  item.scalars = {{"part", std::string("workspace")},
                  {"total_seq_lens", params["total_seq_lens"] * random.between(1, 100)},
                  {"head_dim", head_dim},
                  {"num_blocks", params["pages"]},
                  {"block_size", block_size},
                  {"fp8_page_bytes", block_size * width + params["page_gap"]},
                  {"fp4_page_bytes",
                   block_size * fp4_width + (defect == "keys_past_page" ? -1 : params["page_gap"])},
                  {"defect", defect}};
  return item;
}

/// The cache allocation [blocks, keys of a page, bytes of a key].
Layout cache_layout(const Case& item, IndexerCacheFormat format) {
  const std::int64_t width = key_bytes(item, format);
  const bool fp8 = format == IndexerCacheFormat::kFp8;
  const std::int64_t blocks = item.integer("num_blocks");
  const std::int64_t page = item.integer(fp8 ? "fp8_page_bytes" : "fp4_page_bytes");
  return {{blocks, item.integer("block_size"), width},
          {page, width, 1},
          blocks * page > 0 ? std::vector<Extent>{{0, blocks * page}} : std::vector<Extent>{}};
}

bool has_cache(const Case& item) {
  return std::any_of(item.scalars.begin(), item.scalars.end(),
                     [](const NamedScalar& scalar) { return scalar.name == "num_blocks"; });
}

/// The FP8 view goes over the cache as it is allocated: keys beyond their page are another's.
void check_pages(const Case& item) {
  const std::int64_t keys = item.integer("block_size");
  const std::int64_t page = item.integer("fp8_page_bytes");
  const std::int64_t needed = keys * key_bytes(item, IndexerCacheFormat::kFp8);
  if (page < needed)
    refuse("glm5next_indexer: fp8_page_bytes is {}, must be at least {} for {} keys", page, needed,
           keys);
}

Layout quant_view(const Case& item, IndexerCacheFormat format) {
  return kv_cache_as_quant_view(cache_layout(item, format), DType::kUInt8, item.integer("head_dim"),
                                format);
}

std::vector<OutputSpec> outputs(const Case& item) {
  std::vector<OutputSpec> specs;
  for (const char* name : kShapes) specs.push_back(host_numbers(name, 2, "axis"));
  if (!has_cache(item)) return specs;
  check_pages(item);
  quant_view(item, IndexerCacheFormat::kMxfp4);  // refuses here what the reference would refuse
  for (const char* name :
       {"fp8_view_dims", "fp8_view_strides", "fp4_view_dims", "fp4_view_strides"})
    specs.push_back(host_numbers(name, 4, "axis"));
  return specs;
}

void reference(const Case& item, Outputs& out) {
  const std::int64_t total = item.integer("total_seq_lens");
  const std::int64_t head_dim = item.integer("head_dim");
  const auto fp8 = gather_workspace_shapes(total, head_dim, IndexerCacheFormat::kFp8);
  const auto fp4 = gather_workspace_shapes(total, head_dim, IndexerCacheFormat::kMxfp4);
  const std::array<std::int64_t, 2> shapes[] = {fp8.values, fp8.scales, fp4.values, fp4.scales};
  for (std::size_t i = 0; i < 4; ++i)
    put_numbers(out, kShapes[i], {shapes[i].begin(), shapes[i].end()});
  if (!has_cache(item)) return;
  const Layout fp8_view = quant_view(item, IndexerCacheFormat::kFp8);
  const Layout fp4_view = quant_view(item, IndexerCacheFormat::kMxfp4);
  put_numbers(out, "fp8_view_dims", fp8_view.dims);
  put_numbers(out, "fp8_view_strides", fp8_view.strides);
  put_numbers(out, "fp4_view_dims", fp4_view.dims);
  put_numbers(out, "fp4_view_strides", fp4_view.strides);
}

/// Values and scales of a key fill the key's bytes of the cache, in either format.
std::optional<std::string> workspace_holds_keys(const Case& item, const Outputs& out,
                                                const Evaluate&) {
  for (const auto format : {IndexerCacheFormat::kFp8, IndexerCacheFormat::kMxfp4}) {
    const std::string name = format == IndexerCacheFormat::kFp8 ? "fp8" : "fp4";
    const auto values = numbers_of(output(out, name + "_values"));
    const auto scales = numbers_of(output(out, name + "_scales"));
    if (values[0] != item.integer("total_seq_lens") || scales[0] != values[0] ||
        values[1] + scales[1] != key_bytes(item, format))
      return fmt::format("{}: {} x {} values and {} x {} scales", name, values[0], values[1],
                         scales[0], scales[1]);
  }
  return std::nullopt;
}

/// Keys of a view lie side by side from the start of their page and end before the next one.
std::optional<std::string> keys_stay_in_their_page(const Case& item, const Outputs& out,
                                                   const Evaluate&) {
  if (!has_cache(item)) return std::nullopt;
  for (const std::string name : {"fp8", "fp4"}) {
    const auto dims = numbers_of(output(out, name + "_view_dims"));
    const auto strides = numbers_of(output(out, name + "_view_strides"));
    const std::int64_t page = item.integer(name + "_page_bytes");
    const std::int64_t end = dims[1] == 0 ? 0 : (dims[1] - 1) * strides[1] + dims[3] * strides[3];
    if (strides[0] != page || end > page || (dims[1] > 1 && strides[1] < dims[3]))
      return fmt::format("{}: keys of {} bytes, {} apart, end at {} of a page of {}", name, dims[3],
                         strides[1], end, page);
  }
  return std::nullopt;
}

}  // namespace

StagePart glm5next_workspace_part() {
  return {build,
          outputs,
          reference,
          nullptr,
          {{"workspace_holds_keys", "values and scales of the workspace are the keys' bytes",
            workspace_holds_keys},
           {"pages", "keys of a cache view stay inside their page", keys_stay_in_their_page}}};
}

Case adopt_glm5next_workspace(const RecordedCase& recorded) {
  Case item;
  item.scalars = {{"part", std::string("workspace")},
                  {"total_seq_lens", recorded.integer("total_seq_lens")},
                  {"head_dim", recorded.integer("head_dim")}};
  for (const char* name : kShapes)
    item.expected.push_back({name, recorded.output(name), std::nullopt});
  return item;
}

}  // namespace monoref
