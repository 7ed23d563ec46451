#include "device/backends/fiber.hpp"

#include <sys/mman.h>

#include <atomic>
#include <cstring>

namespace monoref::device {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kStackBytes = FiberPool::kStackBytes;
constexpr std::size_t kStride = kStackBytes + kPage;
/// Stacks lie a multiple of the caches' period apart. Tops that differ by two lines keep the frames
/// of a block's threads from competing for the same few cache sets.
constexpr std::size_t kColours = 32;
constexpr std::size_t kColourBytes = 128;
/// A guard page splits a mapping, and a process may have 65,530 of them (Linux's default). Stacks
/// beyond this number, which only large cooperative launches need, have a marked end instead.
constexpr std::size_t kMaxGuarded = 16384;
constexpr std::uint64_t kEndMark = 0x5eed0ff57ac4e4d5;

std::atomic<std::size_t> guarded_stacks{0};

void mark_end(const Fiber& fiber) {
  std::memcpy(fiber.stack, &kEndMark, sizeof kEndMark);
}

}  // namespace

void Fiber::reset() {
  context = nullptr;
  next = nullptr;
  block = nullptr;
  wait = Wait::kNothing;
  fake_stack = nullptr;
  if (!guarded) mark_end(*this);
#if MONOREF_ADDRESS_SANITIZER
  __asan_unpoison_memory_region(stack, kStackBytes);
#endif
}

bool Fiber::end_mark_is_gone() const {
  return std::memcmp(stack, &kEndMark, sizeof kEndMark) != 0;
}

FiberPool::~FiberPool() {
  abandon_all();  // the sanitizer must forget the frames before the addresses serve someone else
  for (const Chunk& chunk : chunks_) {
    munmap(chunk.memory, kChunk * kStride);
    if (chunk.guarded) guarded_stacks -= kChunk;
  }
}

Fiber* FiberPool::take() {
  if (idle_.empty() && !grow()) return nullptr;
  Fiber* const fiber = idle_.back();
  idle_.pop_back();
  return fiber;
}

void FiberPool::abandon_all() {
  idle_.clear();
  for (Chunk& chunk : chunks_)
    for (std::size_t i = kChunk; i-- > 0;) {
      chunk.fibers[i].reset();
      idle_.push_back(&chunk.fibers[i]);
    }
}

bool FiberPool::in_guard(const Fiber& fiber, std::uintptr_t address) {
  const auto low = reinterpret_cast<std::uintptr_t>(fiber.stack);
  return fiber.guarded && address < low && address >= low - kPage;
}

bool FiberPool::grow() {
  void* const memory = mmap(nullptr, kChunk * kStride, PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return false;
  Chunk chunk{static_cast<std::byte*>(memory), false, std::make_unique<Fiber[]>(kChunk)};
  chunk.guarded = guarded_stacks.fetch_add(kChunk) + kChunk <= kMaxGuarded;
  if (!chunk.guarded) {
    guarded_stacks -= kChunk;
    // Even here the chunk's first page stays without access.
    mprotect(chunk.memory + kPage, kChunk * kStride - kPage, PROT_READ | PROT_WRITE);
  }
  idle_.reserve((chunks_.size() + 1) * kChunk);
  for (std::size_t i = kChunk; i-- > 0;) {
    Fiber& fiber = chunk.fibers[i];
    fiber.stack = chunk.memory + i * kStride + kPage;
    fiber.top = fiber.stack + kStackBytes - i % kColours * kColourBytes;
    fiber.guarded = chunk.guarded;
    if (chunk.guarded)
      mprotect(fiber.stack, kStackBytes, PROT_READ | PROT_WRITE);
    else
      mark_end(fiber);
    idle_.push_back(&fiber);
  }
  chunks_.push_back(std::move(chunk));
  return true;
}

}  // namespace monoref::device
