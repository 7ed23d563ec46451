#include "device/backends/buffer_request.hpp"

#include <fmt/format.h>

#include <bit>
#include <stdexcept>

namespace monoref::device {
namespace {

constexpr std::size_t kMaxAlignment = 4096;
/// The largest span of a buffer: a process has 128 TiB of addresses.
constexpr std::uint64_t kMaxSpan = std::uint64_t{1} << 45;

}  // namespace

void check_request(const BufferRequest& request) {
  if (!std::has_single_bit(request.alignment) || request.alignment > kMaxAlignment)
    throw std::invalid_argument(
        fmt::format("buffer '{}': alignment is {}, must be a power of two up to {}", request.name,
                    request.alignment, kMaxAlignment));
  if (request.base_offset >= request.alignment)
    throw std::invalid_argument(
        fmt::format("buffer '{}': base_offset is {}, must be below its alignment, {}", request.name,
                    request.base_offset, request.alignment));
  std::uint64_t end = 0;
  std::uint64_t bytes = 0;
  for (const ByteExtent& extent : request.extents) {
    if (extent.offset < end || extent.size == 0 || extent.size > kMaxSpan ||
        extent.offset > kMaxSpan - extent.size)
      throw std::invalid_argument(fmt::format(
          "buffer '{}': extent of {} bytes at {}, must be non-empty, begin at {} or later and end "
          "at {} or before",
          request.name, extent.size, extent.offset, end, kMaxSpan));
    end = extent.offset + extent.size;
    bytes += extent.size;
  }
  if (request.image.size() != bytes)
    throw std::invalid_argument(fmt::format("buffer '{}': image has {} bytes, its extents have {}",
                                            request.name, request.image.size(), bytes));
}

void check_image(std::string_view buffer, std::size_t bytes, std::size_t image_bytes) {
  if (bytes != image_bytes)
    throw std::invalid_argument(fmt::format(
        "buffer '{}': {} bytes to write or read, its image has {}", buffer, bytes, image_bytes));
}

std::uint64_t span_of(const BufferRequest& request) {
  if (request.extents.empty()) return 0;
  return request.extents.back().offset + request.extents.back().size;
}

bool is_sparse(const BufferRequest& request) {
  return request.extents.size() > 1 ||
         (request.extents.size() == 1 && request.extents.front().offset != 0);
}

std::string place_in_buffer(std::int64_t offset, std::uint64_t span) {
  if (offset < 0) return fmt::format("{} bytes before its start", -offset);
  const auto at = static_cast<std::uint64_t>(offset);
  if (at >= span) return fmt::format("{} bytes past its end ({} bytes)", at - span, span);
  return fmt::format("at byte {}, between its extents", at);
}

}  // namespace monoref::device
