#include "reference/stages/context_parallel_lengths.hpp"

#include <algorithm>
#include <limits>

#include "reference/rules/integer_division.hpp"
#include "reference/rules/request_batch.hpp"

namespace monoref {
namespace {

constexpr std::string_view kStage = "context_parallel_lengths";
/// Products of two such numbers stay inside int64.
constexpr std::int64_t kMaxFactor = std::numeric_limits<std::int32_t>::max();

void check_factor(std::string_view stage, std::string_view name, std::int64_t value) {
  if (value < 1 || value > kMaxFactor)
    refuse("{}: context-parallel {} is {}, limits 1 and {}", stage, name, value, kMaxFactor);
}

}  // namespace

void check_context_parallel(std::string_view stage, const ContextParallel& context_parallel) {
  check_factor(stage, "world", context_parallel.world);
  check_factor(stage, "interleave", context_parallel.interleave);
  if (context_parallel.rank < 0 || context_parallel.rank >= context_parallel.world)
    refuse("{}: context-parallel rank is {}, limits 0 and {}", stage, context_parallel.rank,
           context_parallel.world - 1);
}

std::int64_t local_length(std::int64_t length, const ContextParallel& context_parallel) {
  const auto [world, rank, interleave] = context_parallel;
  const std::int64_t rounds = floor_divide(floor_divide(length, interleave), world);
  const std::int64_t base = rounds * interleave;
  const std::int64_t remainder = length - base * world;
  return base + std::clamp<std::int64_t>(remainder - rank * interleave, 0, interleave);
}

std::int64_t owner_rank(std::int64_t position, const ContextParallel& context_parallel) {
  return position / context_parallel.interleave % context_parallel.world;
}

std::int64_t local_position(std::int64_t position, const ContextParallel& context_parallel) {
  const std::int64_t interleave = context_parallel.interleave;
  const std::int64_t round = position / (interleave * context_parallel.world);
  return round * interleave + position % interleave;
}

void context_parallel_lengths(const ContextParallelLengthsInput& input,
                              const ContextParallelLengthsOutput& output) {
  check_context_parallel(kStage, input.context_parallel);
  const std::int64_t rows = input.seq_lens.dim(0);
  check_extent(kStage, "local_seq_lens", output.local_seq_lens.dim(0), rows);
  for (std::int64_t row = 0; row < rows; ++row) {
    output.local_seq_lens(row) =
        static_cast<std::int32_t>(local_length(input.seq_lens(row), input.context_parallel));
  }
}

}  // namespace monoref
