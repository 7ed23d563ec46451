// Runs somebody's shared library (device/plugin.h) on stages, so that whatever happens in it is a
// verdict.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "device/backend.hpp"

namespace monoref::device {

struct PluginScalar {
  std::string name;
  std::variant<std::int64_t, double, std::string> value;
};

/// A tensor of a case. Extents count elements; the image is all of them in order.
struct PluginTensor {
  std::string name;
  std::string dtype;
  std::size_t element_size = 1;
  std::vector<std::int64_t> dims;
  std::vector<std::int64_t> strides;
  std::vector<ByteExtent> extents;   ///< in bytes, as in BufferRequest
  std::span<const std::byte> image;  ///< an output's is what it holds before the run
};

struct PluginCall {
  std::string stage;
  std::string contract;
  std::vector<PluginScalar> scalars;
  std::vector<PluginTensor> inputs;
  std::vector<PluginTensor> outputs;
};

enum class PluginStatus { kDone, kRefused, kFailed, kCrashed, kHung };

struct PluginReport {
  PluginStatus status = PluginStatus::kDone;
  std::string message;                          ///< empty for kDone
  std::optional<std::string> damaged_guard;     ///< after kDone: as Backend::damaged_guard
  std::vector<std::vector<std::byte>> outputs;  ///< after kDone: the images, in the call's order
};

/// What a plugin says of a stage. Anything but kDone: it did not get to say it; the message tells
/// how.
struct PluginOffer {
  PluginStatus status = PluginStatus::kDone;
  bool offered = false;
  std::string message;
};

/// A loaded plugin. The library lives in a process of its own; between the two stands a supervisor,
/// forked when the object is made, so that a process that takes over after a crash starts from a
/// clean state. Make the object before the first OpenMP region of the program for the same reason.
/// Not copyable, and used by one thread at a time.
class Plugin {
 public:
  /// Throws Unavailable with the reason if the library cannot be loaded, has no
  /// monoref_plugin_entry, or speaks another version.
  explicit Plugin(std::string path);
  ~Plugin();
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;

  /// The plugin's own name.
  const std::string& name() const { return name_; }
  /// Whether it knows a stage.
  PluginOffer offers(std::string_view stage, double time_limit);
  /// Runs one case within `time_limit` seconds of processor time. Throws what check_request
  /// (buffer_request.hpp) throws.
  PluginReport run(const PluginCall& call, double time_limit);

 private:
  class Supervisor;
  std::string path_;
  std::string name_;
  std::unique_ptr<Supervisor> supervisor_;
};

}  // namespace monoref::device
