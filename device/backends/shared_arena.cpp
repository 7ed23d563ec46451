#include "device/backends/shared_arena.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <system_error>

#include "device/backends/kernel_table.hpp"
#include "device/backends/poison.hpp"

namespace monoref::device {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kAlignment = 16;
constexpr std::size_t kGuard = 64;  ///< bytes between static arrays
/// Room for kSharedLimit bytes, the guards of 64 arrays and their rounding.
constexpr std::size_t kBytes = kSharedLimit + 64 * (kGuard + kAlignment);
constexpr std::size_t kMapped = (kBytes + kPage - 1) / kPage * kPage;

constexpr std::size_t round_up(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

constexpr Poison kPoison;

}  // namespace

SharedArena::SharedArena() {
  void* const memory =
      mmap(nullptr, kMapped + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
  mapping_ = static_cast<std::byte*>(memory);
  begin_ = mapping_ + kPage;
  end_ = begin_ + kMapped;
  if (mprotect(begin_, kMapped, PROT_READ | PROT_WRITE) != 0)
    throw std::system_error(errno, std::generic_category(), "mprotect");
  begin_block(0);
}

SharedArena::~SharedArena() {
  munmap(mapping_, kMapped + 2 * kPage);
}

void SharedArena::begin_block(std::size_t dynamic_bytes) {
  dynamic_bytes_ = dynamic_bytes;
  dynamic_ = end_ - round_up(dynamic_bytes);
  if (dynamic_bytes != 0) kPoison.fill(dynamic_, end_);
  free_ = begin_;
  declared_ = 0;
  count_ = 0;
}

void* SharedArena::find_or_add(const void* key, const char* name, std::size_t bytes) {
  for (std::size_t i = 0; i < count_; ++i)
    if (arrays_[i].key == key) return arrays_[i].begin;
  if (count_ == kMaxArrays || bytes > kSharedLimit - dynamic_bytes_ - declared_) return nullptr;
  declared_ += bytes;
  std::byte* const array = free_;
  free_ = array + round_up(bytes) + kGuard;
  kPoison.fill(array, free_);
  arrays_[count_++] = {key, name, array, bytes};
  return array;
}

const char* SharedArena::overrun() const {
  for (std::size_t i = 0; i < count_; ++i) {
    const Array& array = arrays_[i];
    const std::byte* const end = array.begin + round_up(array.bytes) + kGuard;
    if (kPoison.first_difference(array.begin + array.bytes, end) != end) return array.name;
  }
  if (kPoison.first_difference(dynamic_ + dynamic_bytes_, end_) != end_) return "dynamic";
  return nullptr;
}

const char* SharedArena::locate(std::uintptr_t address) const {
  const auto in = [address](const std::byte* begin, const std::byte* end) {
    return address >= reinterpret_cast<std::uintptr_t>(begin) &&
           address < reinterpret_cast<std::uintptr_t>(end);
  };
  if (in(mapping_, begin_)) return "before the block's shared memory";
  if (in(end_, end_ + kPage)) return "past the end of the block's dynamic shared memory";
  return nullptr;
}

}  // namespace monoref::device
