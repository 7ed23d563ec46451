// How the tables of memory instructions go over the lanes.
#pragma once

#include "device/backends/gfx/format.hpp"

namespace monoref::device::gfx {

/// Calls `f` with every active lane, and notes it for messages.
template <class F>
void each_active(Wave& w, F f) {
  for (u64 lanes = w.exec(); lanes != 0; lanes &= lanes - 1) {
    w.lane = static_cast<unsigned>(std::countr_zero(lanes));
    f(w.lane);
  }
}

/// Part of a register that a load of fewer than 32 bits writes.
enum class Into : std::uint8_t { kWhole, kLow, kHigh };

template <class T, Into kInto>
void put(u32* row, unsigned lane, T loaded) {
  // Signed types carry their sign into what they fill.
  const auto value = static_cast<u32>(static_cast<i32>(loaded));
  if constexpr (kInto == Into::kWhole)
    row[lane] = value;
  else if constexpr (kInto == Into::kLow)
    row[lane] = (row[lane] & 0xffff0000U) | (value & 0xffff);
  else
    row[lane] = (row[lane] & 0xffff) | value << 16;
}

/// Words from memory into the registers from `index` on.
template <unsigned kWords>
void load_words(Wave& w, unsigned index, unsigned lane, const std::byte* from) {
  std::array<u32, kWords> words;
  std::memcpy(words.data(), from, sizeof words);
  for (unsigned n = 0; n < kWords; ++n) w.row(index + n)[lane] = words[n];
}
template <unsigned kWords>
void store_words(Wave& w, const Operand& from, unsigned lane, std::byte* to) {
  std::array<u32, kWords> words;
  for (unsigned n = 0; n < kWords; ++n) words[n] = w.row(from.index + n)[lane];
  std::memcpy(to, words.data(), sizeof words);
}

template <class T>
T fetch(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
template <class T>
void keep(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

/// A value of 32 or 64 bits in the registers of a data operand.
template <class T>
T data_of(Wave& w, const Operand& operand, unsigned lane, unsigned word = 0) {
  u64 value = w.row(operand.index + word)[lane];
  if constexpr (sizeof(T) == 8) value |= u64{w.row(operand.index + word + 1)[lane]} << 32;
  return static_cast<T>(value);
}
template <class T>
void give_data(Wave& w, const Operand& operand, unsigned lane, T value) {
  const auto bits = static_cast<u64>(value);
  w.row(operand.index)[lane] = static_cast<u32>(bits);
  if constexpr (sizeof(T) == 8) w.row(operand.index + 1U)[lane] = static_cast<u32>(bits >> 32);
}

// What atomics make of what they find and what they are given.
namespace atomic {
constexpr auto kAdd = [](auto old, auto value) { return old + value; };
constexpr auto kSub = [](auto old, auto value) { return old - value; };
constexpr auto kMin = [](auto old, auto value) { return value < old ? value : old; };
constexpr auto kMax = [](auto old, auto value) { return value > old ? value : old; };
constexpr auto kAnd = [](auto old, auto value) { return old & value; };
constexpr auto kOr = [](auto old, auto value) { return old | value; };
constexpr auto kXor = [](auto old, auto value) { return old ^ value; };
constexpr auto kSwap = [](auto, auto value) { return value; };
constexpr auto kIncrement = [](auto old, auto value) -> decltype(old) {
  return old >= value ? 0 : old + 1;
};
constexpr auto kDecrement = [](auto old, auto value) -> decltype(old) {
  return old == 0 || old > value ? value : old - 1;
};
constexpr auto kAddFloat = [](u32 old, u32 value) { return add_float(old, value); };
constexpr auto kMinFloat = [](u32 old, u32 value) { return min_float(old, value); };
constexpr auto kMaxFloat = [](u32 old, u32 value) { return max_float(old, value); };
constexpr auto kAddDouble = [](u64 old, u64 value) {
  return std::bit_cast<u64>(as_double(old) + as_double(value));
};
constexpr auto kMinDouble = [](u64 old, u64 value) {
  return std::bit_cast<u64>(std::fmin(as_double(old), as_double(value)));
};
constexpr auto kMaxDouble = [](u64 old, u64 value) {
  return std::bit_cast<u64>(std::fmax(as_double(old), as_double(value)));
};
/// Two sums of 16-bit numbers, each rounded once.
template <const Format& kFormat>
constexpr auto kAddHalves = [](u32 old, u32 value) {
  const auto sum = [](u32 a, u32 b) {
    const double x = as_float(widen(kFormat, a & 0xffff));
    const double y = as_float(widen(kFormat, b & 0xffff));
    return narrow(kFormat, sum_to_odd(x, y));
  };
  return sum(old, value) | sum(old >> 16, value >> 16) << 16;
};
}  // namespace atomic

}  // namespace monoref::device::gfx
