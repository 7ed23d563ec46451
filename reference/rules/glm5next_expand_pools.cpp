#include "reference/rules/glm5next_expand_pools.hpp"

#include <limits>
#include <string_view>

#include "reference/rules/request_batch.hpp"

namespace monoref {
namespace {

constexpr std::string_view kStage = "glm5next_expand_pools";
constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();

void check(const ExpandPoolsInput& input) {
  if (input.pool_size < 1 || input.pool_size > kMaxInt32)
    refuse("{}: pool_size is {}, limits 1 and {}", kStage, input.pool_size, kMaxInt32);
  const std::int64_t rows = input.pool_ids.dim(0);
  check_seq_lens(kStage, "seq_lens", input.seq_lens, rows);
  if (input.pool_ids.dim(1) >= kMaxInt32 / input.pool_size)
    refuse("{}: {} pools of {} tokens a row, limit {} columns", kStage, input.pool_ids.dim(1),
           input.pool_size, kMaxInt32);
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t complete = input.seq_lens(row) / input.pool_size;
    for (std::int64_t place = 0; place < input.pool_ids.dim(1); ++place) {
      const std::int64_t pool = input.pool_ids(row, place);
      if (pool < -1 || pool >= complete)
        refuse("{}: pool_ids[{}, {}] is {}, limits -1 and {} (complete pools of the row)", kStage,
               row, place, pool, complete - 1);
    }
  }
}

}  // namespace

std::int64_t expanded_pool_columns(const ExpandPoolsInput& input) {
  return (input.pool_ids.dim(1) + 1) * input.pool_size - 1;
}

void expand_pools_and_append_tail(const ExpandPoolsInput& input, View<std::int32_t, 2> token_ids) {
  check(input);
  check_extent(kStage, "token_ids", token_ids.dim(0), input.pool_ids.dim(0));
  check_extent(kStage, "token_ids (columns)", token_ids.dim(1), expanded_pool_columns(input));
  const std::int64_t pool_columns = input.pool_ids.dim(1) * input.pool_size;
  for (std::int64_t row = 0; row < token_ids.dim(0); ++row) {
    for (std::int64_t column = 0; column < pool_columns; ++column) {
      const std::int64_t pool = input.pool_ids(row, column / input.pool_size);
      const std::int64_t token = pool * input.pool_size + column % input.pool_size;
      token_ids(row, column) = pool < 0 ? -1 : static_cast<std::int32_t>(token);
    }
    std::int64_t token = input.seq_lens(row) / input.pool_size * input.pool_size;
    for (std::int64_t column = pool_columns; column < token_ids.dim(1); ++column, ++token)
      token_ids(row, column) = token < input.seq_lens(row) ? static_cast<std::int32_t>(token) : -1;
  }
}

}  // namespace monoref
