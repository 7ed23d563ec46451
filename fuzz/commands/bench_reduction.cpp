#include "fuzz/commands/bench_reduction.hpp"

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstring>

#include "device/launch/all_reduce.hpp"
#include "device/vendor_reduction.hpp"
#include "fuzz/random.hpp"
#include "reference/stages/all_reduce.hpp"

namespace monoref {
namespace {

constexpr std::int64_t kHidden = 6144;
constexpr std::int64_t kBlocksOfRow = 2;  ///< one for 3072 elements

constexpr int kReductions = 250;  ///< in one measurement
constexpr std::int64_t kSpinLimit = std::int64_t{1} << 22;
static_assert(kReductions <= device::Backend::kMostTimed);

enum Buffer : std::size_t { kPartials, kSums, kFlags, kStatus };

/// Every device's rank of a reduction, launched again and again with growing tags.
class Reduction {
 public:
  Reduction(device::Backend& backend, std::int64_t rows, std::int64_t owner_from)
      : backend_(backend),
        rows_(rows),
        owner_from_(owner_from),
        partials_(DType::kBFloat16, Layout::dense({ranks(), rows, kHidden})),
        sums_(DType::kBFloat16, partials_.layout()),
        flags_(DType::kInt32, Layout::dense({kReducePhases, ranks(), ranks(), channels()})),
        status_(DType::kInt32, Layout::dense({ranks()})) {
    CounterRandom random(1, "partials");
    const auto partials = partials_.view<std::uint16_t, 3>();
    for (std::int64_t rank = 0; rank < ranks(); ++rank)
      for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t i = 0; i < kHidden; ++i)  // of magnitudes from 2^-8 to 2^7
          partials(rank, row, i) =
              static_cast<std::uint16_t>((random.bits32() & 0x807F) |
                                         static_cast<std::uint32_t>(random.between(119, 134)) << 7);
    const std::int64_t of_rank = rows * kHidden;
    const std::int64_t mailbox = ranks() * channels();
    place({request("partials", partials_, of_rank, 1), request("sums", sums_, of_rank, 1),
           request("flags", flags_, mailbox, kReducePhases), request("status", status_, 1, 1)});
  }

  /// Enqueues the next reduction on every device.
  void enqueue() {
    ++tag_;
    kernels::PeerBuffers peers{};
    for (std::int64_t rank = 0; rank < ranks(); ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      peers.partial[at] = address<std::uint16_t>(kPartials, rank) + rank * rows_ * kHidden;
      peers.sum[at] = address<std::uint16_t>(kSums, rank) + rank * rows_ * kHidden;
      peers.mailbox[at] = address<std::int32_t>(kFlags, rank) + rank * ranks() * channels();
    }
    for (std::int64_t rank = 0; rank < ranks(); ++rank)
      device::launch::enqueue(
          device::launch::AllReduce{.peers = peers,
                                    .mailbox_phase_stride = ranks() * ranks() * channels(),
                                    .status = address<std::int32_t>(kStatus, rank) + rank,
                                    .rows = rows_,
                                    .hidden = kHidden,
                                    .ranks = ranks(),
                                    .first_rank = rank,
                                    .here = 1,
                                    .channels = channels(),
                                    .tag = tag_,
                                    .owner_from = owner_from_,
                                    .order = 0,
                                    .spin_limit = kSpinLimit},
          backend_, {}, static_cast<int>(rank));
  }

  /// What is wrong with the sums and the flags; nothing if all is as the reference has it.
  std::string what_is_wrong() {
    const device::RunReport report = backend_.finish();
    if (report.status != device::RunStatus::kOk) return report.message;
    if (const auto damage = backend_.damaged_guard()) return *damage;
    Tensor sums(DType::kBFloat16, sums_.layout());
    Tensor flags(DType::kInt32, flags_.layout());
    Tensor status(DType::kInt32, status_.layout());
    all_reduce({.partials = partials_.view<std::uint16_t, 3>(),
                .flags = flags_.view<std::int32_t, 4>(),
                .tag = tag_,
                .owner_from = owner_from_},
               {sums.view<std::uint16_t, 3>(), flags.view<std::int32_t, 4>(),
                status.view<std::int32_t, 1>()});
    const std::pair<Buffer, const Tensor*> expected[] = {
        {kSums, &sums}, {kFlags, &flags}, {kStatus, &status}};
    for (const auto& [buffer, tensor] : expected) {
      std::vector<std::byte> image(tensor->image().size());
      backend_.read(buffer, image);
      if (image != tensor->image()) return "the backend differs from the reference";
    }
    return {};
  }

 private:
  std::int64_t ranks() const { return backend_.devices(); }
  std::int64_t channels() const { return rows_ * kBlocksOfRow; }
  template <class T>
  T* address(Buffer buffer, std::int64_t rank) const {
    return static_cast<T*>(backend_.address(buffer, static_cast<int>(rank)));
  }

  /// `repeats` times one run of `elements` for each rank, on its device.
  device::BufferRequest request(const char* name, const Tensor& tensor, std::int64_t elements,
                                std::int64_t repeats) const {
    const auto bytes = static_cast<std::uint64_t>(elements) * tensor.element_size();
    device::BufferRequest made{name, {}, 16, tensor.bytes(tensor.layout().extents.front())};
    for (std::int64_t i = 0; i < repeats; ++i)
      for (int rank = 0; rank < backend_.devices(); ++rank)
        made.runs.push_back({bytes * made.runs.size(), bytes, 1U << rank, rank});
    made.extents = {{0, bytes * made.runs.size()}};
    return made;
  }
  void place(const std::vector<device::BufferRequest>& requests) { backend_.place(requests); }

  device::Backend& backend_;
  std::int64_t rows_;
  std::int64_t owner_from_;
  std::int32_t tag_ = 0;
  Tensor partials_, sums_, flags_, status_;
};

void time_kernel(benchmark::State& state, device::Backend& backend, std::int64_t rows,
                 std::int64_t owner_from) {
  Reduction reduction(backend, rows, owner_from);
  while (state.KeepRunning()) {
    const auto seconds = backend.device_seconds([&] {
      for (int i = 0; i < kReductions; ++i) reduction.enqueue();
    });
    if (!seconds) break;
    state.SetIterationTime(*seconds / kReductions);
  }
  if (const std::string wrong = reduction.what_is_wrong(); !wrong.empty())
    state.SkipWithError(wrong.c_str());
}

void time_vendor(benchmark::State& state, const std::vector<int>& devices, std::int64_t rows) {
  while (state.KeepRunning()) {
    const device::VendorReduction vendor = device::time_vendor_reduction(
        devices, static_cast<std::size_t>(rows * kHidden), kReductions);
    if (vendor.seconds == 0) return state.SkipWithError(vendor.what.c_str());
    state.SetIterationTime(vendor.seconds);
    state.SetLabel(vendor.what);
  }
}

}  // namespace

void register_reduction_benchmarks(device::Backend& backend, const std::vector<int>& devices) {
  constexpr int kMeasurements = 20;
  const auto settle = [](benchmark::internal::Benchmark* benchmark) {
    benchmark->UseManualTime()
        ->Iterations(1)
        ->Repetitions(kMeasurements)
        ->Unit(benchmark::kMicrosecond)
        ->ReportAggregatesOnly();
  };
  for (const std::int64_t rows : {1, 4, 16}) {
    const std::string name =
        fmt::format("reduction/{}_devices/{}x{}", devices.size(), rows, kHidden);
    for (const bool by_owner : {false, true})
      settle(benchmark::RegisterBenchmark(
          fmt::format("{}/{}", name, by_owner ? "owner" : "direct").c_str(),
          [&backend, rows, by_owner](benchmark::State& state) {
            time_kernel(state, backend, rows, by_owner ? 1 : rows + 1);
          }));
    settle(benchmark::RegisterBenchmark(
        fmt::format("{}/vendor", name).c_str(),
        [devices, rows](benchmark::State& state) { time_vendor(state, devices, rows); }));
  }
}

}  // namespace monoref
