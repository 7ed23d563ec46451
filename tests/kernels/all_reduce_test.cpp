// What no case of all_reduce can show: a rank that waits for one that has left, with mailboxes that
// the others have filled by hand, and launches that are none.
#include <algorithm>
#include <limits>

#include "device/launch/all_reduce.hpp"
#include "tests/kernels/bench.hpp"
#include "tests/kernels/number_model.hpp"

namespace monoref::device {
namespace {

using kernels::PeerBuffers;
using u16 = std::uint16_t;
using u32 = std::uint32_t;

constexpr u16 kPoison = 0xAAAA;
constexpr i32 kStatusPoison = -77;
constexpr i64 kNoLimit = i64{1} << 60;
constexpr i32 kFirstTag = std::numeric_limits<i32>::min();

/// One way to launch: wave, channels, threads a block, alignment of the buffers' bases.
struct Launch {
  int wave;
  u32 channels, threads;
  std::size_t alignment;
};

class AllReduce : public ::testing::TestWithParam<Launch> {};

std::string launch_name(const ::testing::TestParamInfo<Launch>& launch) {
  const Launch& l = launch.param;
  return "wave" + std::to_string(l.wave) + "_" + std::to_string(l.channels) + "_of_" +
         std::to_string(l.threads) + "_at_" + std::to_string(l.alignment);
}
INSTANTIATE_TEST_SUITE_P(Grids, AllReduce,
                         ::testing::Values(Launch{64, 1, 64, 16}, Launch{64, 5, 128, 16},
                                           Launch{32, 2, 32, 4}, Launch{32, 7, 192, 16}),
                         launch_name);

template <class T>
T& at(std::vector<T>& values, i64 index) {
  return values.at(static_cast<std::size_t>(index));
}

template <class T>
const T& at(const std::vector<T>& values, i64 index) {
  return values.at(static_cast<std::size_t>(index));
}

/// Partials whose large parts cancel, so that the order of the sum shows through the rounding.
struct ReduceCase {
  i32 ranks;
  i64 rows;
  i32 hidden;
  i64 owner_from = 12;
  i32 tag = 7;
  std::vector<std::vector<u16>> partials;

  i64 size() const { return rows * hidden; }
  bool owners() const { return rows >= owner_from; }
  i32 phases() const { return owners() ? 2 : 1; }
  i32 tag_before() const { return static_cast<i32>(static_cast<u32>(tag) - 1); }

  ReduceCase(i32 rank_count, i64 row_count, i32 hidden_size)
      : ranks(rank_count),
        rows(row_count),
        hidden(hidden_size),
        partials(static_cast<std::size_t>(ranks),
                 std::vector<u16>(static_cast<std::size_t>(size()))) {
    Draws draws(static_cast<std::uint64_t>(rows * 10 + ranks));
    for (i64 i = 0; i < size(); ++i) {
      for (auto& partial : partials) at(partial, i) = encode_bf16(draws.number(-13, -3));
      const int large = draws.below(ranks), opposite = draws.below(ranks);
      const u16 code = encode_bf16(draws.number(8, 12));
      at(partials[static_cast<std::size_t>(large)], i) = code;
      at(partials[static_cast<std::size_t>(opposite)], i) = code ^ 0x8000;
    }
    for (auto& partial : partials) at(partial, size() / 2) = 0x8000;  // -0 of all ranks
    at(partials[0], size() - 1) = 0x7F80;
    at(partials.back(), size() - 1) = ranks == 1 ? 0x7F81 : 0xFF80;  // a NaN
  }
};

std::vector<u16> sum_model(const ReduceCase& c) {
  std::vector<u16> sums;
  for (i64 i = 0; i < c.size(); ++i) {
    float sum = 0.0F;
    for (const auto& partial : c.partials) sum = sum + decode_bf16(at(partial, i));
    sums.push_back(encode_bf16(sum));
  }
  return sums;
}

/// What a launch leaves, and what it began with.
struct Exchange {
  std::vector<std::vector<u16>> sums;  ///< of each rank
  std::vector<i32> flags;              ///< [2 phases, ranks (mailbox), ranks (sender), channels]
  std::vector<i32> status;             ///< of each rank of the launch
  bool operator==(const Exchange&) const = default;
};

/// Everything as it is before a step of all ranks, whose mailboxes hold the tag before.
Exchange before_step(const ReduceCase& c, u32 channels) {
  return {
      std::vector(static_cast<std::size_t>(c.ranks),
                  std::vector<u16>(static_cast<std::size_t>(c.size()), kPoison)),
      std::vector<i32>(static_cast<std::size_t>(2 * c.ranks * c.ranks) * channels, c.tag_before()),
      std::vector<i32>(static_cast<std::size_t>(c.ranks), kStatusPoison)};
}

/// The flag that `sender` sets for `receiver`.
i32& flag(Exchange& x, const ReduceCase& c, u32 channels, i32 phase, i32 receiver, i32 sender,
          u32 channel) {
  return at(x.flags, (i64{phase * c.ranks + receiver} * c.ranks + sender) * channels + channel);
}

/// Sets all flags of one phase and sender.
void tell_all(Exchange& x, const ReduceCase& c, u32 channels, i32 phase, i32 sender) {
  for (i32 receiver = 0; receiver < c.ranks; ++receiver)
    for (u32 channel = 0; channel < channels; ++channel)
      flag(x, c, channels, phase, receiver, sender, channel) = c.tag;
}

/// What a launch is besides its case.
struct Ranks {
  i32 first = 0;
  u32 count;
  i64 spin_limit = kNoLimit;
  i32 order = 0;
};

/// The kernel's parameters behind the peers, and the buffers of a case.
class ReduceBench {
 public:
  ReduceBench(const ReduceCase& c, const Exchange& start, const Launch& launch)
      : launch_(launch), bench_(launch.wave, launch.alignment) {
    for (i32 rank = 0; rank < c.ranks; ++rank) {
      partials_.push_back(bench_.add(c.partials[static_cast<std::size_t>(rank)]));
      sums_.push_back(bench_.add(start.sums[static_cast<std::size_t>(rank)]));
    }
    flags_ = bench_.add(start.flags);
    status_ = bench_.add(start.status);
  }

  void run(const ReduceCase& c, const Ranks& ranks) {
    PeerBuffers peers{};
    for (std::size_t rank = 0; rank < partials_.size(); ++rank) {
      peers.partial[rank] = bench_.at<const u16>(partials_[rank]);
      peers.sum[rank] = bench_.at<u16>(sums_[rank]);
      peers.mailbox[rank] = bench_.at<i32>(flags_) + rank * partials_.size() * launch_.channels;
    }
    const launch::AllReduce args{.peers = peers,
                                 .mailbox_phase_stride = i64{c.ranks} * c.ranks * launch_.channels,
                                 .status = bench_.at<i32>(status_),
                                 .rows = c.rows,
                                 .hidden = c.hidden,
                                 .ranks = c.ranks,
                                 .first_rank = ranks.first,
                                 .here = ranks.count,
                                 .channels = launch_.channels,
                                 .tag = c.tag,
                                 .owner_from = c.owner_from,
                                 .order = ranks.order,
                                 .spin_limit = ranks.spin_limit};
    Grid grid = grid_of(args, launch_.wave);
    grid.threads_x = launch_.threads;
    bench_.run_on(grid, args);
  }

  Exchange read() {
    Exchange x;
    for (const auto& sum : sums_) x.sums.push_back(bench_.read<u16>(sum));
    x.flags = bench_.read<i32>(flags_);
    x.status = bench_.read<i32>(status_);
    return x;
  }

 private:
  Launch launch_;
  KernelBench bench_;
  std::vector<KernelBench::Buffer> partials_, sums_;
  KernelBench::Buffer flags_{}, status_{};
};

Exchange reduce_kernel(const ReduceCase& c, const Exchange& start, const Launch& launch,
                       const Ranks& ranks) {
  ReduceBench bench(c, start, launch);
  bench.run(c, ranks);
  return bench.read();
}

/// What the launch of `rank` alone finds when the others have done all of the step but `absent`,
/// which has come to `absent_phase` and not told the others so.
Exchange others_done(const ReduceCase& c, u32 channels, i32 rank, i32 absent, i32 absent_phase) {
  Exchange x = before_step(c, channels);
  const std::vector<u16> sums = sum_model(c);
  for (i32 other = 0; other < c.ranks; ++other) {
    if (other == rank) continue;
    for (i32 phase = 0; phase < (other == absent ? absent_phase : c.phases()); ++phase)
      tell_all(x, c, channels, phase, other);
    for (i64 i = 0; i < c.size(); ++i)
      if (i / c.hidden % c.ranks == other)
        at(x.sums[static_cast<std::size_t>(other)], i) = at(sums, i);
  }
  return x;
}

/// The same when that launch has ended: what it has told and, of rows `row_of_rank` says, summed.
template <class Predicate>
Exchange rank_done(const ReduceCase& c, u32 channels, Exchange x, i32 rank, i32 phases, i32 status,
                   const Predicate& row_is_there) {
  const std::vector<u16> sums = sum_model(c);
  for (i32 phase = 0; phase < phases; ++phase) tell_all(x, c, channels, phase, rank);
  for (i64 i = 0; i < c.size(); ++i)
    if (row_is_there(i / c.hidden)) at(x.sums[static_cast<std::size_t>(rank)], i) = at(sums, i);
  x.status[0] = status;
  return x;
}

TEST_P(AllReduce, ARankThatLeavesBeforeItsSumsIsNamedAndNothingIsFetched) {
  const u32 channels = GetParam().channels;
  for (const i32 absent : {0, 1, 3}) {
    const ReduceCase c(4, 13, 64);
    const Exchange start = others_done(c, channels, 2, absent, 1);
    EXPECT_EQ(reduce_kernel(c, start, GetParam(), {.first = 2, .count = 1, .spin_limit = 20}),
              rank_done(c, channels, start, 2, 2, 1 + absent, [](i64 row) { return row % 4 == 2; }))
        << absent << " absent";
  }
}

TEST_P(AllReduce, OfOtherSizesRanksAndOrdersWritesNothing) {
  const Launch launch = GetParam();
  const auto expect_nothing = [](const ReduceCase& c, const Launch& l, const Ranks& ranks) {
    const Exchange start = before_step(c, l.channels);
    EXPECT_EQ(reduce_kernel(c, start, l, ranks), start);
  };
  const ReduceCase right(4, 2, 64);
  expect_nothing(ReduceCase(4, 2, 60), launch, {.count = 4});
  expect_nothing(right, launch, {.first = 1, .count = 4});
  expect_nothing(right, launch, {.first = -1, .count = 4});
  expect_nothing(right, launch, {.count = 4, .order = 2});
  Launch partial = launch;
  partial.threads = 48;
  expect_nothing(right, partial, {.count = 4});
  ReduceCase none = right;
  none.hidden = 0;
  expect_nothing(none, launch, {.count = 4});
}

}  // namespace
}  // namespace monoref::device
