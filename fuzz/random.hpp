// Random numbers that are the same on every platform and thread count: Philox4x32-10, counted.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace monoref {

/// A stream of random numbers that depends on (seed, stream) and on nothing else. Tensors of a case
/// draw from streams of their own (named after them), so that the content of one does not move when
/// the shape of another changes: this keeps shrunken cases close to the case they came from.
class CounterRandom {
 public:
  CounterRandom(std::uint64_t seed, std::uint64_t stream)
      : key_{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)},
        stream_(stream) {}
  CounterRandom(std::uint64_t seed, std::string_view stream) : CounterRandom(seed, hash(stream)) {}

  std::uint32_t bits32() {
    if (used_ == block_.size()) refill();
    return block_[used_++];
  }
  std::uint64_t bits64() {
    const std::uint64_t low = bits32();
    return low | (static_cast<std::uint64_t>(bits32()) << 32);
  }
  /// Uniform in [0, count); count must be positive.
  std::int64_t below(std::int64_t count) {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::int64_t>((static_cast<Wide>(bits64()) * static_cast<Wide>(count)) >>
                                     64);
  }
  /// Uniform in [low, high], both included.
  std::int64_t between(std::int64_t low, std::int64_t high) { return low + below(high - low + 1); }
  /// True once in `of` times on average.
  bool once_in(std::int64_t of) { return below(of) == 0; }

  /// FNV-1a, for naming streams.
  static constexpr std::uint64_t hash(std::string_view text) {
    std::uint64_t value = 0xcbf29ce484222325ULL;
    for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
    return value;
  }

 private:
  void refill() {
    std::array<std::uint32_t, 4> x{
        static_cast<std::uint32_t>(counter_), static_cast<std::uint32_t>(counter_ >> 32),
        static_cast<std::uint32_t>(stream_), static_cast<std::uint32_t>(stream_ >> 32)};
    std::array<std::uint32_t, 2> key = key_;
    for (int round = 0; round < 10; ++round) {  // constants of Salmon et al., SC11
      const std::uint64_t p0 = std::uint64_t{0xD2511F53} * x[0];
      const std::uint64_t p1 = std::uint64_t{0xCD9E8D57} * x[2];
      x = {static_cast<std::uint32_t>(p1 >> 32) ^ x[1] ^ key[0], static_cast<std::uint32_t>(p1),
           static_cast<std::uint32_t>(p0 >> 32) ^ x[3] ^ key[1], static_cast<std::uint32_t>(p0)};
      key[0] += 0x9E3779B9;
      key[1] += 0xBB67AE85;
    }
    block_ = x;
    used_ = 0;
    ++counter_;
  }

  std::array<std::uint32_t, 2> key_;
  std::uint64_t stream_;
  std::uint64_t counter_ = 0;
  std::array<std::uint32_t, 4> block_{};
  std::size_t used_ = 4;
};

}  // namespace monoref
