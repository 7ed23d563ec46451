#include "reference/stages/all_reduce.hpp"

#include <algorithm>
#include <vector>

#include "reference/arithmetic/reduce.hpp"
#include "reference/formats/convert.hpp"
#include "reference/rules/stage_checks.hpp"

namespace monoref {
namespace {

using Dims = std::array<std::int64_t, 3>;

std::int64_t phases_in_use(const AllReduceInput& input) {
  return reduces_by_owner(input.partials.dim(1), input.owner_from) ? kReducePhases : 1;
}

/// int32(flag - tag) < 0, without the overflow of signed numbers.
bool is_before(std::int32_t flag, std::int32_t tag) {
  const auto distance = static_cast<std::uint32_t>(flag) - static_cast<std::uint32_t>(tag);
  return static_cast<std::int32_t>(distance) < 0;
}

/// Calls `use` with the index of every flag that `senders` ranks store in `phases` phases.
template <class Use>
void for_each_flag(const AllReduceInput& input, std::int64_t phases, std::int64_t senders,
                   Use use) {
  for (std::int64_t phase = 0; phase < phases; ++phase)
    for (std::int64_t mailbox = 0; mailbox < input.flags.dim(1); ++mailbox)
      for (std::int64_t sender = 0; sender < senders; ++sender)
        for (std::int64_t channel = 0; channel < input.flags.dim(3); ++channel)
          use(phase, mailbox, sender, channel);
}

void check_flags(const AllReduceInput& input, std::int64_t ranks) {
  const std::int64_t channels = input.flags.dim(3);
  require_dims("all_reduce: flags", input.flags, {kReducePhases, ranks, ranks, channels});
  if (channels < 1 || channels > kReduceMaxChannels)
    refuse("all_reduce: flags has {} channels, must have 1 to {}", channels, kReduceMaxChannels);
  for_each_flag(input, phases_in_use(input), ranks, [&](auto... at) {
    if (!is_before(input.flags(at...), input.tag))
      refuse("all_reduce: flags{} is {}, must be before tag {}",
             fmt::format("[{}][{}][{}][{}]", at...), input.flags(at...), input.tag);
  });
}

/// The rank that the sum of an element starts with.
std::int64_t first_rank(const AllReduceInput& input, std::int64_t row, std::int64_t element) {
  if (input.contract.all_reduce_order == AllReduceOrder::kRankOrder) return 0;
  const auto& p = input.partials;
  const std::int64_t last = p.dim(0) - 1;
  const std::int64_t packs_a_segment = p.dim(1) * p.dim(2) / kReducePack / p.dim(0);
  if (packs_a_segment == 0) return last;
  return std::min((row * p.dim(2) + element) / kReducePack / packs_a_segment, last);
}

std::uint16_t sum_of(const AllReduceInput& input, std::int64_t row, std::int64_t element) {
  const std::int64_t ranks = input.partials.dim(0);
  const std::int64_t first = first_rank(input, row, element);
  std::array<float, kReduceMaxRanks> terms{};
  for (std::int64_t i = 0; i < ranks; ++i)
    terms[static_cast<std::size_t>(i)] =
        float_from_bf16(input.partials((first + i) % ranks, row, element));
  return bf16_from_float(
      sum_in_order(std::span(terms).first(static_cast<std::size_t>(ranks)), SumStart::kZero));
}

void write_sums(const AllReduceInput& input, const AllReduceOutput& output) {
  for (std::int64_t row = 0; row < output.sum.dim(1); ++row)
    for (std::int64_t element = 0; element < output.sum.dim(2); ++element) {
      const std::uint16_t sum = sum_of(input, row, element);
      for (std::int64_t rank = 0; rank < output.sum.dim(0); ++rank)
        output.sum(rank, row, element) = sum;
    }
}

}  // namespace

Dims all_reduce_shape(const AllReduceInput& input) {
  const Dims dims{input.partials.dim(0), input.partials.dim(1), input.partials.dim(2)};
  const auto& [ranks, rows, hidden] = dims;
  if (ranks < 1 || ranks > kReduceMaxRanks)
    refuse("all_reduce: partials has {} ranks, must have 1 to {}", ranks, kReduceMaxRanks);
  if (hidden < kReducePack || hidden % kReducePack != 0)
    refuse("all_reduce: hidden is {}, must be a multiple of {}", hidden, kReducePack);
  if (input.owner_from < 1)
    refuse("all_reduce: owner_from is {}, must be at least 1", input.owner_from);
  if (input.absent < 0 || input.absent >= ranks)
    refuse("all_reduce: absent is {}, must be 0 to {}", input.absent, ranks - 1);
  check_flags(input, ranks);
  return dims;
}

void all_reduce(const AllReduceInput& input, const AllReduceOutput& output) {
  const Dims dims = all_reduce_shape(input);
  const auto& [ranks, rows, hidden] = dims;
  require_dims("all_reduce: output sum", output.sum, dims);
  require_dims("all_reduce: output flags", output.flags,
               {kReducePhases, ranks, ranks, input.flags.dim(3)});
  require_dims("all_reduce: output status", output.status, {ranks - input.absent});
  const bool complete = input.absent == 0;
  for_each_flag(input, complete ? phases_in_use(input) : 1, ranks - input.absent,
                [&](auto... at) { output.flags(at...) = input.tag; });
  for (std::int64_t rank = 0; rank < ranks - input.absent; ++rank)
    output.status(rank) = complete ? 0 : static_cast<std::int32_t>(1 + ranks - input.absent);
  if (complete) write_sums(input, output);
}

}  // namespace monoref
