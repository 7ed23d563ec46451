// The host backend: kernels on the CPU, in buffers whose neighbourhood is watched.
#include <fmt/format.h>

#include <cstring>
#include <stdexcept>

#include "device/backend.hpp"
#include "device/backends/host_executor.hpp"
#include "device/backends/host_memory.hpp"
#include "device/backends/kernel_table.hpp"

namespace monoref::device {
namespace {

class HostBackend final : public Backend {
 public:
  HostBackend(int wave, bool with_faults) : wave_(wave), with_faults_(with_faults) {}

  std::string name() const override { return "host"; }
  int wave() const override { return wave_; }

  void place(std::span<const BufferRequest> buffers) override {
    memory_.place(buffers);
    report_ = {};
  }
  void* address(std::size_t index, int /*device*/) const override { return memory_.address(index); }
  void write(std::size_t index, std::span<const std::byte> image) override {
    memory_.write(index, image);
  }

  /// Runs the kernel to its end. After a failure the rest of the case's launches are left out.
  void launch(std::string_view kernel, const Grid& grid, std::span<const KernelArgument> arguments,
              int /*device*/) override {
    const simt::host::KernelEntry& entry = find_kernel(kernel, wave_, with_faults_);
    check_launch(entry, grid, arguments);
    if (report_.status != RunStatus::kOk) return;
    copy_arguments(arguments);
    report_ = run_on_host({.kernel = &entry,
                           .grid = grid,
                           .arguments = argument_pointers_.data(),
                           .time_limit = time_limit(),
                           .describe_address = [this](std::uintptr_t address, bool is_write) {
                             return memory_.describe(address, is_write);
                           }});
  }

  RunReport finish() override { return std::exchange(report_, {}); }
  std::optional<std::string> damaged_guard() override { return memory_.damaged(); }
  void read(std::size_t index, std::span<std::byte> image) override { memory_.read(index, image); }

 private:
  struct alignas(16) Unit {
    std::byte bytes[16];
  };

  /// Every argument begins at a multiple of 16 bytes, whatever the caller's memory looks like.
  void copy_arguments(std::span<const KernelArgument> arguments) {
    std::size_t units = 0;
    for (const KernelArgument& argument : arguments) units += (argument.size + 15) / 16;
    argument_bytes_.resize(units);
    argument_pointers_.clear();
    Unit* at = argument_bytes_.data();
    for (const KernelArgument& argument : arguments) {
      std::memcpy(at, argument.data, argument.size);
      argument_pointers_.push_back(at);
      at += (argument.size + 15) / 16;
    }
  }

  int wave_;
  bool with_faults_;
  HostMemory memory_;
  RunReport report_;
  std::vector<Unit> argument_bytes_;
  std::vector<const void*> argument_pointers_;
};

}  // namespace

std::optional<double> Backend::device_seconds(const std::function<void()>& /*enqueue*/) {
  return std::nullopt;
}

std::unique_ptr<Backend> make_host_backend(int wave, KernelBuild kernels) {
  if (wave != 64 && wave != 32)
    throw std::invalid_argument(fmt::format("host backend: wave is {}, must be 64 or 32", wave));
  return std::make_unique<HostBackend>(wave, kernels == KernelBuild::kWithFaults);
}

}  // namespace monoref::device
