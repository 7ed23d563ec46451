#include "device/backends/plugin.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <stdexcept>
#include <system_error>

#include "device/backends/buffer_request.hpp"
#include "device/backends/guarded_layout.hpp"
#include "device/backends/plugin_process.hpp"
#include "device/backends/plugin_wire.hpp"
#include "device/backends/poison.hpp"
#include "device/plugin.h"

namespace monoref::device {
namespace {

using plugin::Command;
using plugin::FileRun;
using plugin::Header;
using plugin::kHeaderBytes;
using plugin::Outcome;
using plugin::Reply;
using plugin::Request;
using plugin::Writer;

std::uint64_t whole_pages(std::uint64_t bytes, bool) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

[[noreturn]] void system_failure(const char* call) {
  throw std::system_error(errno, std::generic_category(), call);
}

/// A tensor's place in its region and in the shared file.
struct StoredTensor {
  BufferRequest request;
  GuardedLayout layout;
  std::vector<FileRun> runs;
  Poison poison;

  /// Where byte `offset` of the region lies in the file.
  std::uint64_t in_file(std::uint64_t offset) const {
    for (const FileRun& run : runs)
      if (offset >= run.region && offset < run.region + run.bytes)
        return run.file + (offset - run.region);
    throw std::logic_error("plugin: an offset in no run");
  }
};

/// Lays the tensor out, its pages in the file from `end` on.
StoredTensor store(const PluginTensor& tensor, std::size_t number, std::uint64_t& end) {
  constexpr std::size_t kAlignment = 64;
  StoredTensor stored;
  stored.request = {tensor.name, tensor.extents, kAlignment, tensor.image};
  check_request(stored.request);
  stored.layout = guarded_layout(stored.request, whole_pages);
  stored.poison = Poison(number);
  for (const RegionRange& range : stored.layout.accessible) {
    stored.runs.push_back({range.begin, range.end - range.begin, end});
    end += range.end - range.begin;
  }
  return stored;
}

void write_tensor(Writer& wire, const PluginTensor& tensor, const StoredTensor& stored) {
  if (tensor.dims.size() != tensor.strides.size())
    throw std::invalid_argument(fmt::format("plugin: tensor '{}' has {} dims and {} strides",
                                            tensor.name, tensor.dims.size(),
                                            tensor.strides.size()));
  wire.text(tensor.name);
  wire.text(tensor.dtype);
  wire.number(std::uint64_t{tensor.dims.size()});
  for (const std::int64_t dim : tensor.dims) wire.number(dim);
  for (const std::int64_t stride : tensor.strides) wire.number(stride);
  wire.number(std::uint64_t{tensor.extents.size()});
  for (const ByteExtent& extent : tensor.extents) {
    wire.number(extent.offset / tensor.element_size);
    wire.number(extent.size / tensor.element_size);
  }
  wire.number(stored.layout.region);
  wire.number(stored.layout.base);
  wire.number(std::uint64_t{stored.runs.size()});
  for (const FileRun& run : stored.runs) {
    wire.number(run.region);
    wire.number(run.bytes);
    wire.number(run.file);
  }
}

void write_scalar(Writer& wire, const PluginScalar& scalar) {
  wire.text(scalar.name);
  if (const auto* integer = std::get_if<std::int64_t>(&scalar.value)) {
    wire.number(std::uint64_t{MONOREF_INT64});
    wire.number(*integer);
  } else if (const auto* real = std::get_if<double>(&scalar.value)) {
    wire.number(std::uint64_t{MONOREF_DOUBLE});
    wire.real(*real);
  } else {
    wire.number(std::uint64_t{MONOREF_STRING});
    wire.text(std::get<std::string>(scalar.value));
  }
}

Writer serialise(const PluginCall& call, const std::vector<StoredTensor>& stored) {
  Writer wire;
  wire.text(call.stage);
  wire.text(call.contract);
  wire.number(std::uint64_t{call.scalars.size()});
  for (const PluginScalar& scalar : call.scalars) write_scalar(wire, scalar);
  wire.number(std::uint64_t{call.inputs.size()});
  wire.number(std::uint64_t{call.outputs.size()});
  std::size_t number = 0;
  for (const auto* tensors : {&call.inputs, &call.outputs})
    for (const PluginTensor& tensor : *tensors) write_tensor(wire, tensor, stored[number++]);
  return wire;
}

/// What the tensors' region and canaries say of a fault.
std::string describe_fault(const Header& header, const std::vector<StoredTensor>& stored,
                           std::size_t inputs) {
  constexpr std::uint64_t kNear = std::uint64_t{16} << 20;
  const std::string_view verb = header.fault_is_write != 0 ? "write" : "read";
  for (std::size_t i = 0; i < stored.size(); ++i) {
    const std::uint64_t region = header.regions[i];
    if (region == 0 || header.fault_address < region - kNear ||
        header.fault_address >= region + stored[i].layout.region + kNear)
      continue;
    const std::uint64_t span = span_of(stored[i].request);
    const auto offset =
        static_cast<std::int64_t>(header.fault_address - (region + stored[i].layout.base));
    const bool inside = offset >= 0 && static_cast<std::uint64_t>(offset) < span;
    const std::string place = inside && !stored[i].layout.sparse ? fmt::format("at byte {}", offset)
                                                                 : place_in_buffer(offset, span);
    return fmt::format("{} '{}': {} {}", i < inputs ? "input" : "output", stored[i].request.name,
                       verb, place);
  }
  return fmt::format("{} at address {:#x}, which no tensor is near", verb, header.fault_address);
}

}  // namespace

/// The harness's side of the processes and of the shared file.
class Plugin::Supervisor {
 public:
  explicit Supervisor(const std::string& path) : path_(path) {
    file_ = memfd_create("monoref plugin", MFD_CLOEXEC);
    if (file_ < 0) system_failure("memfd_create");
    reserve(kHeaderBytes);
    handle_ = plugin::start_supervisor(file_, path_);
  }

  ~Supervisor() {
    close(handle_.socket);
    while (waitpid(handle_.process, nullptr, 0) < 0 && errno == EINTR) {
    }
    munmap(memory_, bytes_);
    close(file_);
  }

  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  /// Makes the file at least so large. Addresses in it change.
  void reserve(std::uint64_t bytes) {
    if (bytes <= bytes_) return;
    bytes = whole_pages(std::max(bytes, 2 * bytes_), false);
    if (ftruncate(file_, static_cast<off_t>(bytes)) != 0) system_failure("ftruncate");
    if (memory_ != nullptr) munmap(memory_, bytes_);
    void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    if (memory == MAP_FAILED) system_failure("mmap");
    memory_ = static_cast<std::byte*>(memory);
    bytes_ = bytes;
  }

  std::byte* memory() const { return memory_; }
  Header& header() const { return *reinterpret_cast<Header*>(memory_); }

  /// Puts the serial call behind the header, which is cleared.
  void put(const Writer& wire) {
    std::memset(memory_, 0, kHeaderBytes);
    std::memcpy(memory_ + kHeaderBytes, wire.bytes().data(), wire.bytes().size());
  }

  Reply ask(Command command, double time_limit) {
    const Request request{command, bytes_, time_limit};
    Reply reply{Outcome::kGone, 0};
    if (send(handle_.socket, &request, sizeof request, MSG_NOSIGNAL) != sizeof request)
      return {Outcome::kGone, 0};
    ssize_t got;
    do got = recv(handle_.socket, &reply, sizeof reply, 0);
    while (got < 0 && errno == EINTR);
    return got == sizeof reply ? reply : Reply{Outcome::kGone, 0};
  }

 private:
  std::string path_;
  int file_ = -1;
  std::byte* memory_ = nullptr;
  std::uint64_t bytes_ = 0;
  plugin::SupervisorHandle handle_{};
};

namespace {

std::string death_of(const Reply& reply, const std::string& details) {
  if (reply.code <= 0) return fmt::format("the plugin's process exited with {}", -reply.code);
  return fmt::format("the plugin died of signal {} ({}){}{}", reply.code, strsignal(reply.code),
                     details.empty() ? "" : ": ", details);
}

/// The images of the outputs as they lie in the file.
std::vector<std::vector<std::byte>> images_of(const std::byte* memory,
                                              std::span<const StoredTensor> outputs) {
  std::vector<std::vector<std::byte>> images;
  for (const StoredTensor& output : outputs) {
    std::vector<std::byte>& image = images.emplace_back();
    for (const ByteExtent& extent : output.request.extents) {
      const std::byte* const from = memory + output.in_file(output.layout.base + extent.offset);
      image.insert(image.end(), from, from + extent.size);
    }
  }
  return images;
}

std::optional<std::string> damage_of(const std::byte* memory,
                                     std::span<const StoredTensor> tensors) {
  for (const StoredTensor& tensor : tensors)
    for (const RegionRange& canary : tensor.layout.canaries) {
      const std::byte* const begin = memory + tensor.in_file(canary.begin);
      const std::byte* const end = begin + (canary.end - canary.begin);
      const std::byte* const at = tensor.poison.first_difference(begin, end);
      if (at == end) continue;
      const auto offset = static_cast<std::int64_t>(canary.begin) + (at - begin) -
                          static_cast<std::int64_t>(tensor.layout.base);
      return fmt::format("output '{}': written {}", tensor.request.name,
                         place_in_buffer(offset, span_of(tensor.request)));
    }
  return std::nullopt;
}

void fill_file(std::byte* memory, const StoredTensor& tensor) {
  for (const RegionRange& canary : tensor.layout.canaries) {
    std::byte* const begin = memory + tensor.in_file(canary.begin);
    tensor.poison.fill(begin, begin + (canary.end - canary.begin));
  }
  const std::byte* from = tensor.request.image.data();
  for (const ByteExtent& extent : tensor.request.extents) {
    std::memcpy(memory + tensor.in_file(tensor.layout.base + extent.offset), from, extent.size);
    from += extent.size;
  }
}

/// What became of a library that did not return. `fault` says where it touched what is not there,
/// if it did.
PluginReport failure_of(const Reply& reply, const Header& header, double time_limit,
                        const std::string& fault) {
  PluginReport report;
  switch (reply.outcome) {
    case Outcome::kOverTime:
      report.status = PluginStatus::kHung;
      report.message = fmt::format("the plugin ran at the time limit of {} s", time_limit);
      break;
    case Outcome::kAsleep:
      report.status = PluginStatus::kHung;
      report.message = fmt::format("the plugin did nothing for {:.4g} s, the time limit is {} s",
                                   plugin::kSleepFactor * time_limit, time_limit);
      break;
    case Outcome::kGone:
      report.status = PluginStatus::kCrashed;
      report.message = "the plugin has killed the processes around it, and cannot be run again";
      break;
    case Outcome::kNotLoaded:
      report.status = PluginStatus::kFailed;
      report.message = fmt::format("the library does not load again: {}", header.message);
      break;
    case Outcome::kDied:
    case Outcome::kReturned:
      report.status = PluginStatus::kCrashed;
      report.message = death_of(reply, reply.code <= 0 ? "" : fault);
  }
  return report;
}

/// What a library's return code means.
PluginReport judge(std::int32_t code, const char* message) {
  const std::string text = message;
  switch (code) {
    case MONOREF_DONE:
      return {};
    case MONOREF_REFUSED:
      return {.status = PluginStatus::kRefused,
              .message = text.empty() ? "refused without a message" : text,
              .damaged_guard = {},
              .outputs = {}};
    case MONOREF_FAILED:
      return {.status = PluginStatus::kFailed,
              .message = text.empty() ? "failed without a message" : text,
              .damaged_guard = {},
              .outputs = {}};
    default:
      return {.status = PluginStatus::kFailed,
              .message = fmt::format("run returned {}, which means nothing", code),
              .damaged_guard = {},
              .outputs = {}};
  }
}

}  // namespace

Plugin::Plugin(std::string path)
    : path_(std::move(path)), supervisor_(std::make_unique<Supervisor>(path_)) {
  const Reply reply = supervisor_->ask(Command::kLoad, plugin::kLoadSeconds);
  const auto unavailable = [this](const std::string& why) {
    return Unavailable{fmt::format("plugin '{}': {}", path_, why)};
  };
  if (reply.outcome == Outcome::kNotLoaded) throw unavailable(supervisor_->header().message);
  if (reply.outcome == Outcome::kDied) throw unavailable("while loading, " + death_of(reply, ""));
  if (reply.outcome != Outcome::kReturned) throw unavailable("loading does not end");
  name_ = supervisor_->header().message;
}

Plugin::~Plugin() = default;

PluginOffer Plugin::offers(std::string_view stage, double time_limit) {
  Writer wire;
  wire.text(stage);
  supervisor_->reserve(kHeaderBytes + wire.bytes().size());
  supervisor_->put(wire);
  const Reply reply = supervisor_->ask(Command::kOffers, time_limit);
  if (reply.outcome == Outcome::kReturned) return {.offered = reply.code != 0};
  PluginReport report = failure_of(reply, supervisor_->header(), time_limit, "");
  return {report.status, false,
          fmt::format("asked whether it offers '{}': {}", stage, report.message)};
}

PluginReport Plugin::run(const PluginCall& call, double time_limit) {
  const std::size_t count = call.inputs.size() + call.outputs.size();
  if (count > plugin::kMaxTensors)
    throw std::invalid_argument(
        fmt::format("plugin: {} tensors, limit {}", count, plugin::kMaxTensors));
  // The serial form names places in the file behind itself. Its length does not depend on them.
  std::vector<StoredTensor> stored;
  std::uint64_t end = 0;
  const auto store_all = [&] {
    stored.clear();
    for (const auto* tensors : {&call.inputs, &call.outputs})
      for (const PluginTensor& tensor : *tensors)
        stored.push_back(store(tensor, stored.size(), end));
  };
  store_all();
  end = whole_pages(kHeaderBytes + serialise(call, stored).bytes().size(), false);
  store_all();
  supervisor_->reserve(end);
  supervisor_->put(serialise(call, stored));
  std::byte* const memory = supervisor_->memory();
  for (const StoredTensor& tensor : stored) fill_file(memory, tensor);

  const Reply reply = supervisor_->ask(Command::kRun, time_limit);
  const Header& header = supervisor_->header();
  if (reply.outcome != Outcome::kReturned)
    return failure_of(
        reply, header, time_limit,
        header.fault_signal == 0 ? "" : describe_fault(header, stored, call.inputs.size()));
  PluginReport report = judge(reply.code, header.message);
  if (report.status != PluginStatus::kDone) return report;
  const std::span outputs = std::span(stored).subspan(call.inputs.size());
  report.damaged_guard = damage_of(memory, outputs);
  report.outputs = images_of(memory, outputs);
  return report;
}

}  // namespace monoref::device
