#include "device/backends/poison.hpp"

#include <cstring>

namespace monoref::device {
namespace {

constexpr std::size_t kWord = sizeof(std::uint64_t);

bool word_aligned(const std::byte* address) {
  return reinterpret_cast<std::uintptr_t>(address) % kWord == 0;
}

}  // namespace

void Poison::fill(std::byte* begin, std::byte* end) const {
  for (; begin < end && !word_aligned(begin); ++begin) *begin = at(begin);
  const std::uint64_t pattern = word();
  for (; end - begin >= static_cast<std::ptrdiff_t>(kWord); begin += kWord)
    std::memcpy(begin, &pattern, kWord);
  for (; begin < end; ++begin) *begin = at(begin);
}

const std::byte* Poison::first_difference(const std::byte* begin, const std::byte* end) const {
  for (; begin < end && !word_aligned(begin); ++begin)
    if (*begin != at(begin)) return begin;
  const std::uint64_t pattern = word();
  for (; end - begin >= static_cast<std::ptrdiff_t>(kWord); begin += kWord)
    if (std::memcmp(begin, &pattern, kWord) != 0) break;
  for (; begin < end; ++begin)
    if (*begin != at(begin)) return begin;
  return end;
}

}  // namespace monoref::device
