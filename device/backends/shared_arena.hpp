// A block's shared memory on the host.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace monoref::device {

/// Static arrays from the front, each with a guard region behind it; dynamic shared memory at the
/// end, where a page without access follows. All of it is poisoned when a block first sees it.
class SharedArena {
 public:
  SharedArena();
  ~SharedArena();
  SharedArena(const SharedArena&) = delete;
  SharedArena& operator=(const SharedArena&) = delete;

  /// Forgets the last block's arrays; `dynamic_bytes` is at most kSharedLimit.
  void begin_block(std::size_t dynamic_bytes);
  /// The array declared with this key, or null if static and dynamic memory together pass
  /// kSharedLimit, or if there are too many arrays.
  void* find_or_add(const void* key, const char* name, std::size_t bytes);
  void* dynamic() const { return dynamic_; }
  /// The name of an array behind which something was written; null if there is none.
  const char* overrun() const;
  /// What lies at `address`; null if it is not in this arena or next to it.
  const char* locate(std::uintptr_t address) const;

 private:
  struct Array {
    const void* key;
    const char* name;
    std::byte* begin;
    std::size_t bytes;
  };
  static constexpr std::size_t kMaxArrays = 64;

  std::byte* mapping_ = nullptr;
  std::byte* begin_ = nullptr;
  std::byte* end_ = nullptr;
  std::byte* dynamic_ = nullptr;
  std::size_t dynamic_bytes_ = 0;
  std::byte* free_ = nullptr;
  std::size_t declared_ = 0;  ///< bytes of all static arrays
  std::size_t count_ = 0;
  std::array<Array, kMaxArrays> arrays_{};
};

}  // namespace monoref::device
