// all_reduce: generator, reference and kernel side by side.
#include "reference/stages/all_reduce.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "device/kernels/peer_buffers.hpp"
#include "device/launch/all_reduce.hpp"
#include "fuzz/inputs.hpp"
#include "fuzz/laws/ignores.hpp"
#include "fuzz/laws/permute.hpp"
#include "fuzz/stage.hpp"
#include "fuzz/stages/content.hpp"
#include "fuzz/stages/floats.hpp"
#include "reference/formats/convert.hpp"
#include "reference/rules/stage_checks.hpp"

namespace monoref {
namespace {

constexpr std::int64_t kUnit = 512;  ///< hidden is so many elements, or a multiple
/// Looks at a flag before a rank gives up: far more than the others need to come that far.
constexpr std::int64_t kSpinLimit = std::int64_t{1} << 22;
/// The same where ranks never come: still enough for those that do.
constexpr std::int64_t kShortSpinLimit = std::int64_t{1} << 12;

std::uint16_t bf16_bits(float value) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
}

/// Partial sums whose total depends on the order: a place of the large ones is worth a small one.
std::uint16_t cancelling(CounterRandom& random) {
  constexpr std::array<float, 4> kLarge{0x1p24f, -0x1p24f, 0x1p23f, -0x1p23f};
  if (random.once_in(2)) return bf16_bits(kLarge[static_cast<std::size_t>(random.below(4))]);
  return bf16_bits(static_cast<float>(random.between(-3, 3)));
}

/// Sums of few bits next to the middle between two BF16 numbers: 1 + k 2^-9 and small changes.
std::uint16_t near_tie(std::int64_t rank, CounterRandom& random) {
  if (rank == 0) return bf16_bits(1.0f + static_cast<float>(random.between(0, 3)) * 0x1p-7f);
  return bf16_bits(static_cast<float>(random.between(-2, 2)) * 0x1p-9f);
}

std::uint16_t partial(std::string_view kind, std::int64_t rank, CounterRandom& random) {
  if (kind == "cancelling") return cancelling(random);
  if (kind == "near_ties") return near_tie(rank, random);
  if (kind == "negative_zero") return random.once_in(8) ? 0 : 0x8000;
  if (kind == "overflow") return bf16_bits(random.once_in(2) ? 3e38f : -3e38f);
  if (kind == "wide") return draw_bf16(Floats::kWide, random);
  if (kind == "special") return draw_bf16(Floats::kSpecial, random);
  if (kind == "subnormal") return draw_bf16(Floats::kTiny, random);
  return draw_bf16(Floats::kOrdinary, random);
}

/// The tag of a step, and what mailboxes may hold before it.
struct Tags {
  std::string_view kind;
  std::int32_t tag;

  Tags(std::string_view word, CounterRandom& random)
      : kind(word), tag(static_cast<std::int32_t>(random.between(1, 1 << 20))) {
    constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
    if (kind == "wrapping") tag = kLeast + static_cast<std::int32_t>(random.below(4));
    if (kind == "first") tag = 1;
    if (kind == "negative") tag = -static_cast<std::int32_t>(random.between(1, 1 << 20));
  }

  std::int32_t before(CounterRandom& random) const {
    if (kind == "first") return 0;
    if (kind == "stale") return minus(std::int64_t{1} + random.below(std::int64_t{1} << 31));
    return minus(random.between(1, 6));
  }
  std::int32_t minus(std::int64_t steps) const {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(tag) -
                                     static_cast<std::uint32_t>(steps));
  }
};

Tensor make_flags(const Tags& tags, std::int64_t ranks, std::int64_t channels, bool owner_form,
                  CounterRandom& random) {
  Tensor tensor(DType::kInt32, Layout::dense({kReducePhases, ranks, ranks, channels}));
  auto flags = tensor.view<std::int32_t, 4>();
  for (std::int64_t phase = 0; phase < kReducePhases; ++phase)
    for (std::int64_t mailbox = 0; mailbox < ranks; ++mailbox)
      for (std::int64_t sender = 0; sender < ranks; ++sender)
        for (std::int64_t channel = 0; channel < channels; ++channel) {
          // A phase that is not used may hold anything, and keeps it.
          const bool used = phase == 0 || owner_form;
          flags(phase, mailbox, sender, channel) =
              used ? tags.before(random) : static_cast<std::int32_t>(random.bits32());
        }
  return tensor;
}

void plant_defect(Case& item, const std::string& defect, const Tags& tags, CounterRandom& random) {
  for (NamedTensor& input : item.inputs) {
    if (input.name != "flags") continue;
    auto flags = input.tensor.view<std::int32_t, 4>();
    auto& flag = flags(0, random.below(flags.dim(1)), random.below(flags.dim(2)),
                       random.below(flags.dim(3)));
    if (defect == "flag_is_the_tag") flag = tags.tag;
    if (defect == "flag_is_ahead") flag = tags.minus(-random.between(1, 1 << 20));
  }
  if (defect == "flags_of_fewer_ranks") {
    const auto& dims = item.input("flags").dims();
    replace_input(item, "flags",
                  Tensor(DType::kInt32, Layout::dense({dims[0], dims[1], dims[2] - 1, dims[3]})));
  }
}

Case build(const Params& params, const Contract&, std::uint64_t seed) {
  CounterRandom partial_random(seed, "partials");
  CounterRandom flag_random(seed, "flags");
  const std::string defect(params.word("defect"));
  const std::int64_t ranks = defect == "nine_ranks" ? kReduceMaxRanks + 1 : params["ranks"];
  const std::int64_t rows = params["rows"];
  const std::int64_t hidden = kUnit * params["hidden_units"] + (defect == "hidden_of_12" ? 4 : 0);
  const std::int64_t owner_from = defect == "owner_from_0" ? 0 : params["owner_from"];
  const Tags tags(params.word("tags"), flag_random);
  std::int64_t drawn = 0;
  const std::int64_t absent = std::min(params["absent"], ranks - 1);
  Case item;
  item.scalars = {{"tag", std::int64_t{tags.tag}},
                  {"owner_from", owner_from},
                  {"absent", defect == "all_absent" ? ranks : absent},
                  {"defect", defect}};
  item.inputs = {
      {"partials", drawn_tensor(DType::kBFloat16, Layout::dense({ranks, rows, hidden}),
                                [&] {
                                  const std::int64_t rank = drawn++ / (rows * hidden);
                                  return partial(params.word("content"), rank, partial_random);
                                })},
      {"flags", make_flags(tags, ranks, params["channels"], reduces_by_owner(rows, owner_from),
                           flag_random)}};
  // Nobody writes a sum where a rank is missing: it is then what it was before.
  if (absent > 0) item.inputs.push_back({"sum_before", item.input("partials")});
  plant_defect(item, defect, tags, flag_random);
  return item;
}

AllReduceInput input_of(const Case& item) {
  return {.partials = item.input("partials").view<std::uint16_t, 3>(),
          .flags = item.input("flags").view<std::int32_t, 4>(),
          .tag = int32_parameter(item, "tag"),
          .owner_from = item.integer("owner_from"),
          .absent = item.integer_or("absent", 0),
          .contract = item.contract};
}

std::vector<OutputSpec> outputs(const Case& item) {
  const auto [ranks, rows, hidden] = all_reduce_shape(input_of(item));
  return {{"sum",
           DType::kBFloat16,
           Layout::dense({ranks, rows, hidden}),
           {"rank", "row", "element"},
           item.integer_or("absent", 0) > 0 ? "sum_before" : ""},
          {"flags",
           DType::kInt32,
           item.input("flags").layout(),
           {"phase", "mailbox", "sender", "channel"},
           "flags"},
          {"status",
           DType::kInt32,
           Layout::dense({ranks - item.integer_or("absent", 0)}),
           {"rank"},
           ""}};
}

void reference(const Case& item, Outputs& out) {
  all_reduce(input_of(item),
             {out[0].tensor.view<std::uint16_t, 3>(), out[1].tensor.view<std::int32_t, 4>(),
              out[2].tensor.view<std::int32_t, 1>()});
}

/// The ranks that come, those of a device in one cooperative launch: they wait for each other.
void launch(const Case& item, const Launcher& launcher) {
  const AllReduceInput input = input_of(item);
  const std::int64_t ranks = input.partials.dim(0);
  const std::int64_t rank_elements = input.partials.dim(1) * input.partials.dim(2);
  const std::int64_t channels = input.flags.dim(3);
  kernels::PeerBuffers peers{};
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    const Launcher own = launcher.on_rank(rank, ranks);
    peers.partial[at] = own.address<const std::uint16_t>("partials") + rank * rank_elements;
    peers.sum[at] = own.address<std::uint16_t>("out.sum") + rank * rank_elements;
    peers.mailbox[at] = own.address<std::int32_t>("out.flags") + rank * ranks * channels;
  }
  launcher.together([&] {
    for (const auto [first, count] : launcher.rank_groups(ranks, ranks - input.absent)) {
      const Launcher own = launcher.on_rank(first, ranks);
      own.enqueue(
          device::launch::AllReduce{.peers = peers,
                                    .mailbox_phase_stride = ranks * ranks * channels,
                                    .status = own.address<std::int32_t>("out.status") + first,
                                    .rows = input.partials.dim(1),
                                    .hidden = input.partials.dim(2),
                                    .ranks = ranks,
                                    .first_rank = first,
                                    .here = count,
                                    .channels = channels,
                                    .tag = input.tag,
                                    .owner_from = input.owner_from,
                                    .order = option(item.contract.all_reduce_order),
                                    .spin_limit = input.absent > 0 ? kShortSpinLimit : kSpinLimit});
    }
  });
}

std::int64_t ranks_of(const Case& item) {
  return item.input("partials").dim(0);
}

/// Partials, sums, mailbox and status lie with their rank; the others come there for them.
std::vector<RankShare> shares(const Case& item) {
  const AllReduceInput input = input_of(item);
  const auto [ranks, rows, hidden] = all_reduce_shape(input);
  const std::int64_t mailbox = ranks * input.flags.dim(3);
  std::vector<RankShare> list;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const std::int64_t rows_of_rank = rank * rows * hidden;
    list.push_back({"partials", rank, false, rows_of_rank, rows * hidden});
    list.push_back({"out.sum", rank, true, rows_of_rank, rows * hidden});
    for (std::int64_t phase = 0; phase < kReducePhases; ++phase)
      list.push_back({"out.flags", rank, true, (phase * ranks + rank) * mailbox, mailbox});
    if (rank < ranks - input.absent) list.push_back({"out.status", rank, true, rank, 1});
  }
  return list;
}

bool is_complete(const Case& item) {
  return item.integer_or("absent", 0) == 0;
}

std::optional<std::string> ranks_agree(const Case& item, const Outputs& out, const Evaluate&) {
  if (!is_complete(item)) return std::nullopt;
  const Tensor& sum = output(out, "sum");
  for (std::int64_t rank = 1; rank < sum.dim(0); ++rank)
    if (!same_row(sum, 0, sum, rank))
      return fmt::format("rank {} has other sums than rank 0", rank);
  return std::nullopt;
}

/// Zeros beside one rank's partial sums leave them as they are, -0 and NaN apart.
std::optional<std::string> a_rank_alone_is_the_sum(const Case& item, const Outputs&,
                                                   const Evaluate& evaluate) {
  if (!is_complete(item)) return std::nullopt;
  const auto partials = item.input("partials").view<std::uint16_t, 3>();
  const std::int64_t one = item.integer("tag") & 1 ? partials.dim(0) - 1 : 0;
  Case other = item;
  Tensor alone(DType::kBFloat16, item.input("partials").layout());
  auto rows = alone.view<std::uint16_t, 3>();
  for (std::int64_t row = 0; row < rows.dim(1); ++row)
    for (std::int64_t i = 0; i < rows.dim(2); ++i) rows(one, row, i) = partials(one, row, i);
  replace_input(other, "partials", std::move(alone));
  const Outputs outs = evaluate(other);
  const auto sum = output(outs, "sum").view<std::uint16_t, 3>();
  for (std::int64_t row = 0; row < sum.dim(1); ++row)
    for (std::int64_t i = 0; i < sum.dim(2); ++i) {
      const std::uint16_t code = partials(one, row, i);
      const std::uint16_t expected =
          (code & 0x7FFF) == 0 ? 0 : bf16_from_float(float_from_bf16(code));
      if (sum(0, row, i) != expected)
        return fmt::format("row {} element {} of rank {} alone is 0x{:04x}, not 0x{:04x}", row, i,
                           one, sum(0, row, i), expected);
    }
  return std::nullopt;
}

/// The other form of a complete reduction. The phase that was not used may hold anything; it must
/// be behind the tag now.
std::optional<Case> in_other_form(const Case& item) {
  if (!is_complete(item)) return std::nullopt;
  const AllReduceInput input = input_of(item);
  const std::int64_t rows = input.partials.dim(1);
  const bool owner = reduces_by_owner(rows, input.owner_from);
  auto other =
      laws::with_scalar("owner_from", owner ? rows + 1 : std::max<std::int64_t>(rows, 1))(item);
  Tensor flags = item.input("flags");
  const std::int64_t phase = flags.layout().elements() / kReducePhases;
  auto* const words = reinterpret_cast<std::int32_t*>(flags.base());
  std::copy_n(words, phase, words + phase);
  replace_input(*other, "flags", std::move(flags));
  return other;
}

bool is_complete_and_in_rank_order(const Case& item) {
  return is_complete(item) && item.contract.all_reduce_order != AllReduceOrder::kRotated;
}

}  // namespace

Stage all_reduce_stage() {
  Stage stage;
  stage.name = "all_reduce";
  stage.summary = "partial sums of all ranks added up, through tagged mailboxes";
  stage.source = "mono-decode sections 7 and 10; upstream-semantics section 3.2";
  stage.contracts = {"mono", "mono,all_reduce_order=rotated"};
  stage.dimensions = {
      {"ranks", 1, 1, 8, {1, 2, 4, 4, 8}, {}, "ranks that reduce together"},
      {"rows", 1, 0, 5, {0, 1, 11, 12, 13, 17}, {}, "tokens"},
      {"hidden_units", 1, 1, 2, {1, 1, 1, 3}, {}, "hidden / 512"},
      {"owner_from", 12, 1, 13, {12, 12, 1, 4}, {}, "rows from which the owner form is used"},
      {"channels", 1, 1, 5, {1, 2, 17}, {}, "blocks of a rank"},
      {"absent", 0, 0, 0, {0, 0, 0, 0, 0, 0, 0, 1, 2, 7}, {}, "ranks that never come"},
      Dimension::choice("content",
                        {"ordinary", "cancelling", "near_ties", "negative_zero", "overflow", "wide",
                         "special", "subnormal"},
                        "the partial sums"),
      Dimension::choice("tags", {"ordinary", "first", "negative", "wrapping", "stale"},
                        "the step's tag, and the tags before it"),
      defect_dimension(14, {"flag_is_the_tag", "flag_is_ahead", "flags_of_fewer_ranks",
                            "nine_ranks", "hidden_of_12", "owner_from_0", "all_absent"}),
  };
  stage.inputs = {{"partials", {DType::kBFloat16}, {"ranks", "rows", "hidden"}},
                  {"flags", {DType::kInt32}, {"phases", "ranks", "ranks", "channels"}},
                  {.name = "sum_before",
                   .types = {DType::kBFloat16},
                   .axes = {"ranks", "rows", "hidden"},
                   .optional = true}};
  stage.scalars = {ScalarSpec::integer("tag", kInt32Min, kInt32Max),
                   ScalarSpec::integer("owner_from", 1, std::numeric_limits<std::int64_t>::max()),
                   ScalarSpec::integer("absent", 0, kReduceMaxRanks - 1).or_none()};
  stage.build = build;
  stage.outputs = outputs;
  stage.reference = reference;
  stage.launch = launch;
  stage.ranks = ranks_of;
  stage.shares = shares;
  stage.properties = {
      {"rank_agreement", "all ranks have the same bits", ranks_agree},
      laws::unchanged("form_agreement", "the owner form and the direct form give the same bits",
                      {in_other_form}, {.outputs = {"sum"}}),
      {"single_rank", "zeros beside one rank's partial sums change nothing",
       a_rank_alone_is_the_sum},
      laws::permute({.inputs = {{"partials", 1}},
                     .outputs = {{"sum", 1}},
                     .applies = is_complete_and_in_rank_order,
                     .statement = "in rank order, rows in another order are the same rows"}),
  };
  return stage;
}

}  // namespace monoref
