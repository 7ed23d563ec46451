// kv_indptr: generator, reference and kernel side by side.
#include "reference/stages/kv_indptr.hpp"

#include "device/launch/kv_indptr.hpp"
#include "fuzz/stages/content.hpp"
#include "fuzz/stages/indexer_content.hpp"

namespace monoref {
namespace {

constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();

/// The length of live row `row`. Of the largest there is one, so that the sums fit.
std::int64_t live_length(const Params& params, std::int64_t row, CounterRandom& random) {
  const std::int64_t page = params["page_size"];
  const std::string_view kind = params.word("lengths");
  if (kind == "pages") return page * random.between(0, 9) + random.between(-1, 1);
  if (kind == "negative") return random.between(-3 * page, 2 * page);
  if (kind == "largest") return row == 0 ? kInt32Max - random.below(300) : 0;
  return random.between(0, 600);
}

/// What an earlier step left behind the live rows.
std::int64_t stale_length(std::string_view kind, CounterRandom& random) {
  if (kind == "zero") return 0;
  return kind == "negative" ? -random.between(1, 600) : random.between(1, 600);
}

Case build(const Params& params, const Contract&, std::uint64_t seed) {
  CounterRandom random(seed, "seq_lens");
  const std::string defect(params.word("defect"));
  std::int64_t live = params["live"];
  std::vector<std::int64_t> lengths;
  for (std::int64_t row = 0; row < live; ++row) lengths.push_back(live_length(params, row, random));
  if (defect == "too_many_pages") {
    lengths.insert(lengths.begin(), {kInt32Max, 1});
    live += 2;
  }
  for (std::int64_t row = 0; row < params["padding"]; ++row)
    lengths.push_back(stale_length(params.word("stale"), random));
  if (defect == "live_beyond_bucket") live = std::ssize(lengths) + 1;
  if (defect == "live_negative") live = -1;
  const std::int64_t page_size = defect == "too_many_pages" ? 1 : params["page_size"];
  Case item;
  item.scalars = {
      {"live", live}, {"page_size", defect == "no_page_size" ? 0 : page_size}, {"defect", defect}};
  item.inputs = {{"seq_lens", strided_vector(DType::kInt32, lengths, params["vector_step"])}};
  return item;
}

KvIndptrInput input_of(const Case& item) {
  return {item.input("seq_lens").view<std::int32_t, 1>(), item.integer("live"),
          item.integer("page_size")};
}

std::vector<OutputSpec> outputs(const Case& item) {
  const auto dims = kv_indptr_shape(input_of(item));
  return {{"kv_indptr", DType::kInt32, Layout::dense({dims[0]}), {"row"}, ""}};
}

void reference(const Case& item, Outputs& out) {
  kv_indptr(input_of(item), {out[0].tensor.view<std::int32_t, 1>()});
}

void launch(const Case& item, const Launcher& launcher) {
  const Tensor& lengths = item.input("seq_lens");
  launcher.enqueue(
      device::launch::KvIndptr{.seq_lens = launcher.address<const std::int32_t>("seq_lens"),
                               .seq_lens_stride = lengths.layout().strides[0],
                               .indptr = launcher.address<std::int32_t>("out.kv_indptr"),
                               .bucket = lengths.dim(0),
                               .live = item.integer("live"),
                               .page_size = item.integer("page_size")});
}

/// Live requests have the pages that hold their lengths, and padding has none.
std::optional<std::string> pages_hold_lengths(const Case& item, const Outputs& out,
                                              const Evaluate&) {
  const auto lengths = numbers_of(item.input("seq_lens"));
  const auto sums = numbers_of(output(out, "kv_indptr"));
  const std::int64_t page = item.integer("page_size");
  if (sums.front() != 0) return fmt::format("kv_indptr begins with {}", sums.front());
  for (std::size_t row = 0; row < lengths.size(); ++row) {
    const std::int64_t pages = sums[row + 1] - sums[row];
    const std::int64_t length =
        static_cast<std::int64_t>(row) < item.integer("live") ? lengths[row] : 0;
    const bool holds =
        length < 1 ? pages == 0 : pages * page >= length && (pages - 1) * page < length;
    if (!holds) return fmt::format("row {} of {} tokens has {} pages", row, length, pages);
  }
  return std::nullopt;
}

/// The case with other lengths behind the live ones.
Case with_padding(const Case& item, const std::vector<std::int64_t>& stale) {
  std::vector<std::int64_t> lengths = numbers_of(item.input("seq_lens"));
  lengths.resize(static_cast<std::size_t>(item.integer("live")));
  lengths.insert(lengths.end(), stale.begin(), stale.end());
  Case other = item;
  set_input(other, "seq_lens", vector_of(DType::kInt32, lengths));
  return other;
}

/// Any bucket, with any lengths behind the live ones, gives the live requests the same sums.
std::optional<std::string> bucket_does_not_matter(const Case& item, const Outputs& out,
                                                  const Evaluate& evaluate) {
  const auto expected = numbers_of(output(out, "kv_indptr"));
  const auto live = static_cast<std::size_t>(item.integer("live"));
  for (const std::vector<std::int64_t>& stale :
       {std::vector<std::int64_t>{}, {7, -7, 7}, std::vector<std::int64_t>(70, 129)}) {
    const auto sums = numbers_of(output(evaluate(with_padding(item, stale)), "kv_indptr"));
    for (std::size_t row = 0; row < sums.size(); ++row)
      if (sums[row] != expected[std::min(row, live)])
        return fmt::format("kv_indptr[{}] is {} in a bucket of {}, must be {}", row, sums[row],
                           sums.size() - 1, expected[std::min(row, live)]);
  }
  return std::nullopt;
}

}  // namespace

Stage kv_indptr_stage() {
  Stage stage;
  stage.name = "kv_indptr";
  stage.summary = "where each request's pages begin in a captured bucket";
  stage.source = "upstream-semantics section 6.3";
  stage.dimensions = {
      {"live", 1, 0, 8, {0, 1, 31, 32, 33, 64, 65, 130}, {}, "requests of the step"},
      {"padding", 0, 0, 6, {0, 1, 65}, {}, "rows of the bucket behind them"},
      {"page_size", 1, 1, 20, {1, 16, 64, 128}, {}, "tokens of a page"},
      Dimension::choice("lengths", {"ordinary", "pages", "negative", "largest"},
                        "lengths of the requests; pages: around whole ones"),
      Dimension::choice("stale", {"zero", "longer", "negative"}, "lengths in the padding"),
      {"vector_step", 1, 1, 3, {}, {}, "stride of the lengths"},
      defect_dimension(12,
                       {"no_page_size", "live_beyond_bucket", "live_negative", "too_many_pages"}),
  };
  stage.inputs = {{"seq_lens", {DType::kInt32}, {"bucket"}, InputStorage::kStrided}};
  stage.sizes = {{"bucket", 0, limits::kTokens}};
  stage.scalars = {ScalarSpec::integer("live", 0, limits::kTokens),
                   ScalarSpec::integer("page_size", 1, kInt32Max)};
  stage.build = build;
  stage.outputs = outputs;
  stage.reference = reference;
  stage.launch = launch;
  stage.properties = {
      {"pages", "every live request has just the pages that hold it, padding has none (T26)",
       pages_hold_lengths},
      {"bucket", "larger buckets and stale lengths behind the live ones change nothing (D04)",
       bucket_does_not_matter},
  };
  return stage;
}

}  // namespace monoref
