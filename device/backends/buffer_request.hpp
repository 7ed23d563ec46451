// What all backends check and say about buffers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "device/backend.hpp"

namespace monoref::device {

/// Throws std::invalid_argument, naming the buffer, where extents are empty, not ascending or not
/// disjoint, the image has another size than they have, or the alignment is no power of two up to
/// 4096.
void check_request(const BufferRequest& request);

/// Throws std::invalid_argument unless an image to write or read has the buffer's size.
void check_image(std::string_view buffer, std::size_t bytes, std::size_t image_bytes);

/// The end of the last extent.
std::uint64_t span_of(const BufferRequest& request);

/// Whether only the extents get memory: there are several, or the one there is begins behind 0.
bool is_sparse(const BufferRequest& request);

/// "4 bytes past its end (100 bytes)" and the like; the offset counts from the buffer's base.
std::string place_in_buffer(std::int64_t offset, std::uint64_t span);

}  // namespace monoref::device
