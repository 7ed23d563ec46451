// Where the buffers of a case lie when its ranks have devices of their own.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "fuzz/stage.hpp"

namespace monoref {

/// Ranks are dealt out in order: with fewer devices than ranks, neighbours share one.
int device_of_rank(std::int64_t rank, std::int64_t ranks, int devices);

/// Which devices need what of a case's buffers. A rank's device has what the rank reads or writes;
/// the others have guards there. What no rank names lies on all devices.
class Placement {
 public:
  explicit Placement(int devices) : devices_(devices) {}

  /// Adds what a case needs, which uses the buffers after those added before.
  void add(const Stage& stage, const Case& item);

  /// For BufferRequest::runs: of a buffer with elements of `element_size` in these extents.
  std::vector<device::DeviceRun> runs(const std::string& buffer,
                                      const std::vector<device::ByteExtent>& extents,
                                      std::size_t element_size) const;

 private:
  struct Use {
    std::int64_t offset, count;  ///< elements
    std::uint32_t devices;
    std::int32_t source;  ///< the device whose bytes count from now on; -1: of all of them
    bool is_written;
  };

  int devices_;
  std::map<std::string, std::vector<Use>, std::less<>> uses_;
};

}  // namespace monoref
