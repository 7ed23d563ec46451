#include "fuzz/stages/step_rows.hpp"

#include <algorithm>

#include "fuzz/stages/content.hpp"

namespace monoref {

std::int64_t StepRows::most_blocks(const BlockSelection& selection) const {
  std::int64_t most = 1;
  for (std::int64_t row = 0; row < rows(); ++row)
    most = std::max(most, selection.blocks(std::max<std::int64_t>(length(row), 1)));
  return most;
}

std::vector<std::int64_t> StepRows::row_lengths() const {
  std::vector<std::int64_t> all;
  for (std::int64_t row = 0; row < rows(); ++row) all.push_back(length(row));
  return all;
}

std::vector<std::int32_t> StepRows::row_tables(const std::vector<std::int32_t>& ids,
                                               std::int64_t width) const {
  std::vector<std::int32_t> tables;
  for (std::int64_t row = 0; row < rows(); ++row) {
    const auto from = ids.begin() + row / q_len * width;
    tables.insert(tables.end(), from, from + width);
  }
  return tables;
}

std::vector<std::int64_t> reversed_requests(std::int64_t rows, std::int64_t q_len) {
  std::vector<std::int64_t> order;
  for (std::int64_t first = rows - q_len; first >= 0; first -= q_len)
    for (std::int64_t token = 0; token < q_len; ++token) order.push_back(first + token);
  return order;
}

StepRows drawn_step_rows(const Params& params, const BlockSelection& selection,
                         CounterRandom& random) {
  const std::int64_t capacity =
      params["blocks"] * selection.block_size - params["short_of_capacity"];
  return {params["q_len"], make_lengths(static_cast<Lengths>(params["lengths"]), params["requests"],
                                        capacity, params["q_len"], random)};
}

std::vector<Extent> stored_blocks(std::vector<std::int32_t> ids, std::int64_t stride,
                                  std::int64_t run) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  std::vector<Extent> extents;
  for (const std::int32_t id : ids) {
    const std::int64_t offset = id * stride;
    if (!extents.empty() && extents.back().offset + extents.back().count == offset)
      extents.back().count += run;
    else
      extents.push_back({offset, run});
  }
  return extents;
}

void add_selection(Case& item, const BlockSelection& selection) {
  item.scalars.push_back({"block_size", selection.block_size});
  item.scalars.push_back({"topk", selection.topk});
  item.scalars.push_back({"init_blocks", selection.init_blocks});
  item.scalars.push_back({"local_blocks", selection.local_blocks});
}

std::vector<ScalarSpec> selection_scalars() {
  return {ScalarSpec::integer("block_size", 128, 128), ScalarSpec::integer("topk", 1, 64),
          ScalarSpec::integer("init_blocks", 0, kMaxSelectableBlocks),
          ScalarSpec::integer("local_blocks", 0, kMaxSelectableBlocks)};
}

BlockSelection selection_of(const Case& item) {
  return {.block_size = item.integer("block_size"),
          .topk = item.integer("topk"),
          .init_blocks = item.integer("init_blocks"),
          .local_blocks = item.integer("local_blocks")};
}

bool same_bits(const Outputs& a, const Outputs& b, std::string_view name) {
  return output(a, name).image() == output(b, name).image();
}

}  // namespace monoref
