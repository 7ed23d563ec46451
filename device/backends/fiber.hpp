// Fibres of the host executor: stacks that are mapped once and used again and again.
#pragma once

#include <boost/context/detail/fcontext.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/simt/host.hpp"

#if defined(__SANITIZE_ADDRESS__)
#define MONOREF_ADDRESS_SANITIZER 1
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
#define MONOREF_ADDRESS_SANITIZER 0
#endif

namespace monoref::device {

struct Block;
struct Wave;

/// What a thread waits for.
enum class Wait : std::uint8_t { kNothing, kBarrier, kShuffle, kBallot };

/// A stack, and the thread of the block that runs on it at the moment. What a switch needs fills
/// the first cache line.
struct alignas(64) Fiber {
  boost::context::detail::fcontext_t context = nullptr;  ///< where it stopped; null: never started
  Fiber* next = nullptr;                                 ///< in the queue in which it stands
  Block* block = nullptr;                                ///< null while it runs no thread
  Wave* wave = nullptr;
  std::uint32_t linear = 0;  ///< of the thread in its block
  std::uint32_t lane = 0;
  simt::host::Index3 index;
  Wait wait = Wait::kNothing;
  bool guarded = false;  ///< a page without access lies below the stack
  simt::host::Site site;

  std::byte* stack = nullptr;  ///< lowest byte
  std::byte* top = nullptr;    ///< where the first frame goes
  void* fake_stack = nullptr;  ///< the address sanitizer's

  /// Lets a stack that was abandoned in the middle of things begin anew.
  void reset();
  /// Whether the stack has been overrun; known for fibres without a guard page.
  bool overrun() const { return !guarded && end_mark_is_gone(); }

 private:
  bool end_mark_is_gone() const;
};

/// First in, first out; the links are in the fibres.
class FiberQueue {
 public:
  bool empty() const { return head_ == nullptr; }

  void push(Fiber& fiber) {
    fiber.next = nullptr;
    (head_ == nullptr ? head_ : tail_->next) = &fiber;
    tail_ = &fiber;
  }

  /// The first, or null. Fetches what a switch to the one after it will touch: with hundreds of
  /// fibres in turn, those lines have left the nearest cache since they ran last.
  Fiber* pop() {
    Fiber* const first = head_;
    if (first == nullptr) return nullptr;
    head_ = first->next;
    if (head_ != nullptr) {
      constexpr std::ptrdiff_t kLine = 64;
      for (std::ptrdiff_t line = 0; line < 4; ++line)
        __builtin_prefetch(static_cast<const std::byte*>(head_->context) + line * kLine);
      __builtin_prefetch(head_->next);
    }
    return first;
  }

  /// Moves all of `other` behind the last.
  void append(FiberQueue& other) {
    if (other.head_ == nullptr) return;
    (head_ == nullptr ? head_ : tail_->next) = other.head_;
    tail_ = other.tail_;
    other.head_ = nullptr;
  }

  void clear() { head_ = nullptr; }

 private:
  Fiber* head_ = nullptr;
  Fiber* tail_ = nullptr;
};

/// The fibres of one OS thread. They are made on demand and live until it ends.
class FiberPool {
 public:
  FiberPool() = default;
  ~FiberPool();
  FiberPool(const FiberPool&) = delete;
  FiberPool& operator=(const FiberPool&) = delete;

  /// A fibre that runs no thread; null if there is no memory for another.
  Fiber* take();
  /// Whether `take` can do without system calls.
  bool has_idle() const { return !idle_.empty(); }
  /// Never allocates: there is room for every fibre.
  void give(Fiber& fiber) { idle_.push_back(&fiber); }
  /// Takes all fibres back, wherever they were.
  void abandon_all();
  /// Bytes of one stack: 64 KiB hold a kernel with 16 KiB of local arrays many times over; the
  /// sanitizer's red zones take more.
  static constexpr std::size_t kStackBytes = std::size_t{MONOREF_ADDRESS_SANITIZER ? 256 : 64}
                                             << 10;
  /// Whether the address lies in the guard page below this fibre's stack.
  static bool in_guard(const Fiber& fiber, std::uintptr_t address);

  template <class Visit>
  void for_each(Visit visit) const {
    for (const Chunk& chunk : chunks_)
      for (std::size_t i = 0; i < kChunk; ++i) visit(chunk.fibers[i]);
  }

 private:
  static constexpr std::size_t kChunk = 64;  ///< fibres mapped at a time

  struct Chunk {
    std::byte* memory = nullptr;
    bool guarded = false;
    std::unique_ptr<Fiber[]> fibers;
  };

  bool grow();

  std::vector<Chunk> chunks_;
  std::vector<Fiber*> idle_;
};

}  // namespace monoref::device
