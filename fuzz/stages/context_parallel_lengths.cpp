// context_parallel_lengths: generator, reference and kernel side by side. The original localises on
// the host; the kernel run here is the uniform expansion with queries of one token, which does the
// same to each length.
#include "reference/stages/context_parallel_lengths.hpp"

#include <algorithm>
#include <limits>

#include "device/launch/decode_expand.hpp"
#include "fuzz/laws/adds_up.hpp"
#include "fuzz/stages/content.hpp"
#include "fuzz/stages/indexer_content.hpp"
#include "fuzz/stages/indexer_kernels.hpp"

namespace monoref {
namespace {

constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();

std::int64_t drawn_length(std::string_view kind, std::int64_t unit, CounterRandom& random) {
  if (kind == "runs") return unit * random.between(0, 20) + random.between(-1, 1);
  if (kind == "negative") return -random.between(1, 600);
  if (kind == "largest") return kInt32Max - random.below(300);
  return random.between(0, 600);
}

Case build(const Params& params, const Contract&, std::uint64_t seed) {
  CounterRandom random(seed, "seq_lens");
  const std::int64_t world = params["world"];
  std::vector<std::int64_t> lengths;
  for (std::int64_t row = 0; row < params["rows"]; ++row)
    lengths.push_back(drawn_length(params.word("lengths"), params["interleave"], random));
  const std::string defect(params.word("defect"));
  Case item;
  item.scalars = {{"world", defect == "no_ranks" ? 0 : world},
                  {"rank", defect == "rank_outside" ? world : params["rank"] % world},
                  {"interleave", defect == "no_interleave" ? 0 : params["interleave"]},
                  {"defect", defect}};
  item.inputs = {{"seq_lens", strided_vector(DType::kInt32, lengths, params["vector_step"])}};
  return item;
}

std::vector<OutputSpec> outputs(const Case& item) {
  check_context_parallel("context_parallel_lengths", context_parallel_of(item));
  return {{"local_seq_lens",
           DType::kInt32,
           Layout::dense({item.input("seq_lens").dim(0)}),
           {"row"},
           ""}};
}

void reference(const Case& item, Outputs& out) {
  context_parallel_lengths(
      {item.input("seq_lens").view<std::int32_t, 1>(), context_parallel_of(item)},
      {out[0].tensor.view<std::int32_t, 1>()});
}

void launch(const Case& item, const Launcher& launcher) {
  const Tensor& lengths = item.input("seq_lens");
  launcher.enqueue(device::launch::DecodeExpand{
      .seq_lens = launcher.address<const std::int32_t>("seq_lens"),
      .seq_lens_stride = lengths.layout().strides[0],
      .decode_seq_lens = launcher.address<std::int32_t>("out.local_seq_lens"),
      .requests = lengths.dim(0),
      .live_rows = lengths.dim(0),
      .length_rows = lengths.dim(0),
      .sharing = cache_sharing(1, context_parallel_of(item))});
}

/// A token more is one key more on one rank, and none on the others.
std::optional<std::string> shares_grow_by_owner(const Case& item, const Outputs& out,
                                                const Evaluate& evaluate) {
  std::vector<std::int64_t> lengths = numbers_of(item.input("seq_lens"));
  for (auto& length : lengths) length = std::min(length + 1, kInt32Max);
  Case other = item;
  set_input(other, "seq_lens", vector_of(DType::kInt32, lengths));
  const auto before = numbers_of(output(out, "local_seq_lens"));
  const auto after = numbers_of(output(evaluate(other), "local_seq_lens"));
  for (std::size_t row = 0; row < before.size(); ++row)
    if (after[row] < before[row] || after[row] > before[row] + 1)
      return fmt::format("length {} leaves {} here, a token more {}", lengths[row] - 1, before[row],
                         after[row]);
  return std::nullopt;
}

}  // namespace

Stage context_parallel_lengths_stage() {
  Stage stage;
  stage.name = "context_parallel_lengths";
  stage.summary = "one rank's share of every sequence under context parallelism";
  stage.source = "deepseek-indexer-metadata: get_dcp_local_seq_lens";
  stage.dimensions = {
      {"rows", 1, 0, 8, {0, 1, 65}, {}, "lengths"},
      {"world", 1, 1, 8, {1, 2, 4, 8}, {}, "ranks that share the cache"},
      {"rank", 0, 0, 7, {}, {}, "this rank (modulo world)"},
      {"interleave", 1, 1, 8, {1, 2, 4, 64, 4096}, {}, "consecutive keys on one rank"},
      Dimension::choice("lengths", {"ordinary", "runs", "negative", "largest"},
                        "lengths of the sequences"),
      {"vector_step", 1, 1, 3, {}, {}, "stride of the lengths"},
      defect_dimension(9, {"no_ranks", "rank_outside", "no_interleave"}),
  };
  stage.inputs = {{"seq_lens", {DType::kInt32}, {"rows"}, InputStorage::kStrided}};
  stage.scalars = context_parallel_specs();
  stage.build = build;
  stage.outputs = outputs;
  stage.reference = reference;
  stage.launch = launch;
  stage.properties = {
      laws::adds_up({"local_seq_lens"}, "the ranks' shares add up to the length (T19)"),
      {"growth", "a token more is at most one key more", shares_grow_by_owner},
  };
  return stage;
}

}  // namespace monoref
