#include "fuzz/placement.hpp"

#include <algorithm>

namespace monoref {
namespace {

using device::DeviceRun;

/// The first run that begins at `at` or behind it, after the one that contains it was cut there.
std::vector<DeviceRun>::iterator cut(std::vector<DeviceRun>& runs, std::uint64_t at) {
  auto run = std::find_if(runs.begin(), runs.end(),
                          [at](const DeviceRun& known) { return known.offset + known.size > at; });
  if (run == runs.end() || run->offset >= at) return run;
  DeviceRun behind = *run;
  behind.offset = at;
  behind.size = run->offset + run->size - at;
  run->size = at - run->offset;
  return runs.insert(run + 1, behind);
}

void join_equal_neighbours(std::vector<DeviceRun>& runs) {
  std::vector<DeviceRun> joined;
  for (const DeviceRun& run : runs) {
    if (!joined.empty() && joined.back().devices == run.devices &&
        joined.back().source == run.source)
      joined.back().size += run.size;
    else
      joined.push_back(run);
  }
  runs = std::move(joined);
}

}  // namespace

int device_of_rank(std::int64_t rank, std::int64_t ranks, int devices) {
  return static_cast<int>(rank * devices / std::max<std::int64_t>(ranks, 1));
}

void Placement::add(const Stage& stage, const Case& item) {
  if (devices_ == 1 || !stage.ranks || !stage.shares) return;
  const std::int64_t ranks = stage.ranks(item);
  const std::uint32_t all = (1U << devices_) - 1;
  for (RankShare& share : stage.shares(item)) {
    const bool is_own = share.rank != RankShare::kAllRanks;
    const std::int32_t device = is_own ? device_of_rank(share.rank, ranks, devices_) : -1;
    uses_[std::move(share.buffer)].push_back(
        {share.offset, share.count, is_own ? 1U << device : all, device, share.is_written});
  }
}

std::vector<DeviceRun> Placement::runs(const std::string& buffer,
                                       const std::vector<device::ByteExtent>& extents,
                                       std::size_t element_size) const {
  const auto found = uses_.find(buffer);
  if (found == uses_.end() || extents.empty()) return {};
  const std::uint64_t end = extents.back().offset + extents.back().size;
  const bool is_one_run = extents.size() > 1 || extents.front().offset != 0;
  std::vector<DeviceRun> runs{{0, end, 0, -1}};
  std::uint32_t users = 0;
  for (const Use& use : found->second) {
    const bool is_whole = is_one_run || use.count == RankShare::kWhole;
    const std::uint64_t from = is_whole ? 0 : static_cast<std::uint64_t>(use.offset) * element_size;
    const std::uint64_t to =
        is_whole ? end
                 : std::min<std::uint64_t>(
                       end, static_cast<std::uint64_t>(use.offset + use.count) * element_size);
    users |= use.devices;
    if (from >= to) continue;
    cut(runs, to);
    for (auto run = cut(runs, from); run != runs.end() && run->offset < to; ++run) {
      run->devices |= use.devices;
      if (use.is_written) run->source = use.source;
    }
  }
  std::uint32_t holders = 0;
  for (DeviceRun& run : runs) {
    if (run.devices == 0) run.devices = (1U << devices_) - 1;
    holders |= run.devices;
  }
  join_equal_neighbours(runs);
  // Who uses no byte of it, a rank without rows, still needs an address.
  if ((users & ~holders) != 0) runs.insert(runs.begin(), {0, 0, users & ~holders, -1});
  return runs;
}

}  // namespace monoref
