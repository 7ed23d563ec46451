// Loads, stores and atomics of memory that is not LDS, for every way of addressing it.
//
// A way of addressing is a class `At` that is made of a wave and an instruction and has
//   at(lane, bytes, write, further): the place, `further` bytes behind the lane's address; null
//     where a range check drops the access, which only happens if kChecked;
//   kAtomicResults: the results that assembly names of an atomic;
//   data(inst), found(inst): the operands that hold what is written, and what an atomic found.
#pragma once

#include "device/backends/gfx/format.hpp"
#include "device/backends/gfx/memory.hpp"
#include "device/backends/gfx/table.hpp"

namespace monoref::device::gfx {

/// What is read where a range check drops the access is 0.
template <class T>
T fetch_or_zero(const std::byte* from) {
  return from == nullptr ? T{} : fetch<T>(from);
}
/// Words of one lane's access: each is checked by itself.
template <class At, unsigned kWords>
std::array<u32, kWords> fetch_words(const At& at, unsigned lane) {
  std::array<u32, kWords> words;
  if constexpr (At::kChecked)
    for (unsigned n = 0; n < kWords; ++n)
      words[n] = fetch_or_zero<u32>(at.at(lane, 4, false, 4 * n));
  else
    std::memcpy(words.data(), at.at(lane, 4 * kWords, false), sizeof words);
  return words;
}

template <class At, class T, Into kInto>
void load(Wave& w, const Inst& i) {
  const At at(w, i);
  Lanes loaded;
  u32* const d = w.row(i.dst[0].index);
  std::memcpy(loaded.at.data(), d, sizeof loaded.at);
  each_active(w, [&](unsigned l) {
    put<T, kInto>(loaded.at.data(), l, fetch_or_zero<T>(at.at(l, sizeof(T), false)));
  });
  std::memcpy(d, loaded.at.data(), sizeof loaded.at);
}
template <class At, unsigned kWords>
void load_many(Wave& w, const Inst& i) {
  const At at(w, i);
  // A lane's address may be overwritten by its own words only after it was used.
  each_active(w, [&](unsigned l) {
    const auto words = fetch_words<At, kWords>(at, l);
    for (unsigned n = 0; n < kWords; ++n) w.row(i.dst[0].index + n)[l] = words[n];
  });
}
/// M0 says where in LDS the first lane's words go; what lies behind LDS is dropped.
template <class At, class T, unsigned kWords>
void load_to_lds(Wave& w, const Inst& i) {
  constexpr u32 kAddressBits = 0x3ffff;
  const At at(w, i);
  const u64 first = (w.scalar[kM0] & kAddressBits) + static_cast<u64>(i64{i.offset});
  each_active(w, [&](unsigned l) {
    std::array<u32, kWords> words;
    if constexpr (kWords == 1)
      words[0] = static_cast<u32>(static_cast<i32>(fetch_or_zero<T>(at.at(l, sizeof(T), false))));
    else
      words = fetch_words<At, kWords>(at, l);
    const u64 to = first + u64{l} * sizeof words;
    if (to + sizeof words <= w.shared->bytes.size())
      std::memcpy(w.shared->at(to, sizeof words, true), words.data(), sizeof words);
  });
}
template <class At, class T, unsigned kShift>
void store(Wave& w, const Inst& i) {
  const At at(w, i);
  const u32* const data = w.row(At::data(i).index);
  each_active(w, [&](unsigned l) {
    std::byte* const to = at.at(l, sizeof(T), true);
    if (!At::kChecked || to != nullptr) keep(to, static_cast<T>(data[l] >> kShift));
  });
}
template <class At, unsigned kWords>
void store_many(Wave& w, const Inst& i) {
  const At at(w, i);
  each_active(w, [&](unsigned l) {
    if constexpr (At::kChecked) {
      for (unsigned n = 0; n < kWords; ++n)
        if (std::byte* const to = at.at(l, 4, true, 4 * n); to != nullptr)
          keep(to, w.row(At::data(i).index + n)[l]);
    } else {
      store_words<kWords>(w, At::data(i), l, at.at(l, 4 * kWords, true));
    }
  });
}
/// Atomics: all of an access is checked at once.
template <class At, class T, auto F>
void change(Wave& w, const Inst& i) {
  const At at(w, i);
  each_active(w, [&](unsigned l) {
    std::byte* const place = at.at(l, sizeof(T), true);
    const T old = At::kChecked ? fetch_or_zero<T>(place) : fetch<T>(place);
    if (!At::kChecked || place != nullptr)
      keep(place, static_cast<T>(F(old, data_of<T>(w, At::data(i), l))));
    if (i.returns) give_data(w, At::found(i), l, old);
  });
}
/// The data operand holds the new value and behind it the one to find.
template <class At, class T>
void compare_and_swap(Wave& w, const Inst& i) {
  const At at(w, i);
  each_active(w, [&](unsigned l) {
    std::byte* const place = at.at(l, sizeof(T), true);
    const T old = At::kChecked ? fetch_or_zero<T>(place) : fetch<T>(place);
    const bool found = old == data_of<T>(w, At::data(i), l, sizeof(T) / 4);
    if (found && (!At::kChecked || place != nullptr)) keep(place, data_of<T>(w, At::data(i), l));
    if (i.returns) give_data(w, At::found(i), l, old);
  });
}

// clang-format off
#define MONOREF_LOADS_STORES(prefix, place)                                   \
  {prefix "load_ubyte", load<place, std::uint8_t, Into::kWhole>},             \
  {prefix "load_sbyte", load<place, std::int8_t, Into::kWhole>},              \
  {prefix "load_ushort", load<place, u16, Into::kWhole>},                     \
  {prefix "load_sshort", load<place, i16, Into::kWhole>},                     \
  {prefix "load_ubyte_d16", load<place, std::uint8_t, Into::kLow>},           \
  {prefix "load_ubyte_d16_hi", load<place, std::uint8_t, Into::kHigh>},       \
  {prefix "load_sbyte_d16", load<place, std::int8_t, Into::kLow>},            \
  {prefix "load_sbyte_d16_hi", load<place, std::int8_t, Into::kHigh>},        \
  {prefix "load_short_d16", load<place, u16, Into::kLow>},                    \
  {prefix "load_short_d16_hi", load<place, u16, Into::kHigh>},                \
  {prefix "load_dword", load<place, u32, Into::kWhole>},                      \
  {prefix "load_dwordx2", load_many<place, 2>},                               \
  {prefix "load_dwordx3", load_many<place, 3>},                               \
  {prefix "load_dwordx4", load_many<place, 4>},                               \
  {prefix "store_byte", store<place, std::uint8_t, 0>, 0},                    \
  {prefix "store_byte_d16_hi", store<place, std::uint8_t, 16>, 0},            \
  {prefix "store_short", store<place, u16, 0>, 0},                            \
  {prefix "store_short_d16_hi", store<place, u16, 16>, 0},                    \
  {prefix "store_dword", store<place, u32, 0>, 0},                            \
  {prefix "store_dwordx2", store_many<place, 2>, 0},                          \
  {prefix "store_dwordx3", store_many<place, 3>, 0},                          \
  {prefix "store_dwordx4", store_many<place, 4>, 0}
#define MONOREF_ATOMIC(prefix, place, name, sign, F)                                 \
  {prefix "atomic_" name, change<place, sign##32, atomic::F>, place::kAtomicResults},            \
  {prefix "atomic_" name "_x2", change<place, sign##64, atomic::F>, place::kAtomicResults}
#define MONOREF_ATOMICS(prefix, place)                                               \
  MONOREF_ATOMIC(prefix, place, "swap", u, kSwap),                                   \
  MONOREF_ATOMIC(prefix, place, "add", u, kAdd),                                     \
  MONOREF_ATOMIC(prefix, place, "sub", u, kSub),                                     \
  MONOREF_ATOMIC(prefix, place, "smin", i, kMin),                                    \
  MONOREF_ATOMIC(prefix, place, "umin", u, kMin),                                    \
  MONOREF_ATOMIC(prefix, place, "smax", i, kMax),                                    \
  MONOREF_ATOMIC(prefix, place, "umax", u, kMax),                                    \
  MONOREF_ATOMIC(prefix, place, "and", u, kAnd),                                     \
  MONOREF_ATOMIC(prefix, place, "or", u, kOr),                                       \
  MONOREF_ATOMIC(prefix, place, "xor", u, kXor),                                     \
  MONOREF_ATOMIC(prefix, place, "inc", u, kIncrement),                               \
  MONOREF_ATOMIC(prefix, place, "dec", u, kDecrement),                               \
  {prefix "atomic_add_f32", change<place, u32, atomic::kAddFloat>, place::kAtomicResults},       \
  {prefix "atomic_add_f64", change<place, u64, atomic::kAddDouble>, place::kAtomicResults},       \
  {prefix "atomic_min_f64", change<place, u64, atomic::kMinDouble>, place::kAtomicResults},       \
  {prefix "atomic_max_f64", change<place, u64, atomic::kMaxDouble>, place::kAtomicResults},       \
  {prefix "atomic_pk_add_f16", change<place, u32, atomic::kAddHalves<kBinary16>>, place::kAtomicResults},   \
  {prefix "atomic_pk_add_bf16", change<place, u32, atomic::kAddHalves<kBfloat16>>, place::kAtomicResults},  \
  {prefix "atomic_cmpswap", compare_and_swap<place, u32>, place::kAtomicResults},                \
  {prefix "atomic_cmpswap_x2", compare_and_swap<place, u64>, place::kAtomicResults}

#define MONOREF_LOADS_TO_LDS(prefix, place)                          \
  {prefix "ubyte", load_to_lds<place, std::uint8_t, 1>, 0},            \
  {prefix "sbyte", load_to_lds<place, std::int8_t, 1>, 0},             \
  {prefix "ushort", load_to_lds<place, u16, 1>, 0},                    \
  {prefix "sshort", load_to_lds<place, i16, 1>, 0},                    \
  {prefix "dword", load_to_lds<place, u32, 1>, 0},                     \
  {prefix "dwordx3", load_to_lds<place, u32, 3>, 0},                   \
  {prefix "dwordx4", load_to_lds<place, u32, 4>, 0}
// clang-format on

}  // namespace monoref::device::gfx
