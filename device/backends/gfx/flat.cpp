// FLAT, GLOBAL and SCRATCH. A flat address lies in LDS, in a lane's scratch or in global memory.
#include "device/backends/gfx/memory.hpp"
#include "device/backends/gfx/table.hpp"

namespace monoref::device::gfx {
namespace {

enum class Space : std::uint8_t { kFlat, kGlobal, kScratch };

/// One instruction's addresses: its first source, and the scalar base that ends its sources.
template <Space kSpace>
class Addresses {
 public:
  Addresses(Wave& w, const Inst& i) : w_(w), offset_(i.offset) {
    const Operand& vector = i.src[0];
    // FLAT names one operand; the others name a vector and a scalar one, either of which may be
    // off.
    const Operand& scalar = kSpace == Space::kFlat ? none() : i.src[i.sources - 1U];
    if (vector.kind == OperandKind::kVector) low_ = w.row(vector.index);
    if (scalar.kind == OperandKind::kScalar || scalar.kind == OperandKind::kConstant)
      base_ = kSpace == Space::kScratch ? scalar32(w, scalar) : scalar64(w, scalar);
    else if (kSpace != Space::kScratch && low_ != nullptr)
      high_ = low_ + kLanes;
  }
  std::byte* at(unsigned lane, std::size_t bytes, bool write) const {
    if constexpr (kSpace == Space::kScratch) {
      const u64 address =
          base_ + (low_ == nullptr ? 0 : low_[lane]) + static_cast<u64>(i64{offset_});
      return w_.scratch_at(lane, address & 0xffffffff, bytes);
    } else {
      u64 address = base_ + static_cast<u64>(i64{offset_}) + low_[lane];
      if (high_ != nullptr) address += u64{high_[lane]} << 32;
      if constexpr (kSpace == Space::kFlat) {
        if (address - kSharedAperture < kApertureBytes)
          return w_.shared->at(address - kSharedAperture, bytes, write);
        if (address - kPrivateAperture < kApertureBytes)
          return w_.scratch_at(lane, address - kPrivateAperture, bytes);
      }
      return w_.memory->at(address, bytes, write);
    }
  }

 private:
  static const Operand& none() {
    static constexpr Operand kNothing{};
    return kNothing;
  }
  Wave& w_;
  const u32* low_ = nullptr;
  const u32* high_ = nullptr;
  u64 base_ = 0;
  i32 offset_;
};

template <Space kSpace, class T, Into kInto>
void load(Wave& w, const Inst& i) {
  const Addresses<kSpace> at(w, i);
  Lanes loaded;
  u32* const d = w.row(i.dst[0].index);
  std::memcpy(loaded.at.data(), d, sizeof loaded.at);
  each_active(w, [&](unsigned l) {
    put<T, kInto>(loaded.at.data(), l, fetch<T>(at.at(l, sizeof(T), false)));
  });
  std::memcpy(d, loaded.at.data(), sizeof loaded.at);
}
template <Space kSpace, unsigned kWords>
void load_many(Wave& w, const Inst& i) {
  const Addresses<kSpace> at(w, i);
  // A lane's address may be overwritten by its own words only after it was used.
  each_active(w, [&](unsigned l) {
    load_words<kWords>(w, i.dst[0].index, l, at.at(l, 4 * kWords, false));
  });
}
template <Space kSpace, class T, unsigned kShift>
void store(Wave& w, const Inst& i) {
  const Addresses<kSpace> at(w, i);
  const u32* const data = w.row(i.src[1].index);
  each_active(
      w, [&](unsigned l) { keep(at.at(l, sizeof(T), true), static_cast<T>(data[l] >> kShift)); });
}
template <Space kSpace, unsigned kWords>
void store_many(Wave& w, const Inst& i) {
  const Addresses<kSpace> at(w, i);
  each_active(w,
              [&](unsigned l) { store_words<kWords>(w, i.src[1], l, at.at(l, 4 * kWords, true)); });
}
template <Space kSpace, class T, auto F>
void change(Wave& w, const Inst& i) {
  const Addresses<kSpace> at(w, i);
  each_active(w, [&](unsigned l) {
    std::byte* const place = at.at(l, sizeof(T), true);
    const T old = fetch<T>(place);
    keep(place, static_cast<T>(F(old, data_of<T>(w, i.src[1], l))));
    if (i.returns) give_data(w, i.dst[0], l, old);
  });
}
/// The data operand holds the new value and behind it the one to find.
template <Space kSpace, class T>
void compare_and_swap(Wave& w, const Inst& i) {
  const Addresses<kSpace> at(w, i);
  each_active(w, [&](unsigned l) {
    std::byte* const place = at.at(l, sizeof(T), true);
    const T old = fetch<T>(place);
    if (old == data_of<T>(w, i.src[1], l, sizeof(T) / 4)) keep(place, data_of<T>(w, i.src[1], l));
    if (i.returns) give_data(w, i.dst[0], l, old);
  });
}
void nothing(Wave&, const Inst&) {}

// clang-format off
#define MONOREF_LOADS_STORES(prefix, space)                                   \
  {prefix "load_ubyte", load<space, std::uint8_t, Into::kWhole>},             \
  {prefix "load_sbyte", load<space, std::int8_t, Into::kWhole>},              \
  {prefix "load_ushort", load<space, u16, Into::kWhole>},                     \
  {prefix "load_sshort", load<space, i16, Into::kWhole>},                     \
  {prefix "load_ubyte_d16", load<space, std::uint8_t, Into::kLow>},           \
  {prefix "load_ubyte_d16_hi", load<space, std::uint8_t, Into::kHigh>},       \
  {prefix "load_sbyte_d16", load<space, std::int8_t, Into::kLow>},            \
  {prefix "load_sbyte_d16_hi", load<space, std::int8_t, Into::kHigh>},        \
  {prefix "load_short_d16", load<space, u16, Into::kLow>},                    \
  {prefix "load_short_d16_hi", load<space, u16, Into::kHigh>},                \
  {prefix "load_dword", load<space, u32, Into::kWhole>},                      \
  {prefix "load_dwordx2", load_many<space, 2>},                               \
  {prefix "load_dwordx3", load_many<space, 3>},                               \
  {prefix "load_dwordx4", load_many<space, 4>},                               \
  {prefix "store_byte", store<space, std::uint8_t, 0>, 0},                    \
  {prefix "store_byte_d16_hi", store<space, std::uint8_t, 16>, 0},            \
  {prefix "store_short", store<space, u16, 0>, 0},                            \
  {prefix "store_short_d16_hi", store<space, u16, 16>, 0},                    \
  {prefix "store_dword", store<space, u32, 0>, 0},                            \
  {prefix "store_dwordx2", store_many<space, 2>, 0},                          \
  {prefix "store_dwordx3", store_many<space, 3>, 0},                          \
  {prefix "store_dwordx4", store_many<space, 4>, 0}
#define MONOREF_ATOMIC(prefix, space, name, sign, F)                                 \
  {prefix "atomic_" name, change<space, sign##32, atomic::F>, kByReturn},            \
  {prefix "atomic_" name "_x2", change<space, sign##64, atomic::F>, kByReturn}
#define MONOREF_ATOMICS(prefix, space)                                               \
  MONOREF_ATOMIC(prefix, space, "swap", u, kSwap),                                   \
  MONOREF_ATOMIC(prefix, space, "add", u, kAdd),                                     \
  MONOREF_ATOMIC(prefix, space, "sub", u, kSub),                                     \
  MONOREF_ATOMIC(prefix, space, "smin", i, kMin),                                    \
  MONOREF_ATOMIC(prefix, space, "umin", u, kMin),                                    \
  MONOREF_ATOMIC(prefix, space, "smax", i, kMax),                                    \
  MONOREF_ATOMIC(prefix, space, "umax", u, kMax),                                    \
  MONOREF_ATOMIC(prefix, space, "and", u, kAnd),                                     \
  MONOREF_ATOMIC(prefix, space, "or", u, kOr),                                       \
  MONOREF_ATOMIC(prefix, space, "xor", u, kXor),                                     \
  MONOREF_ATOMIC(prefix, space, "inc", u, kIncrement),                               \
  MONOREF_ATOMIC(prefix, space, "dec", u, kDecrement),                               \
  {prefix "atomic_add_f32", change<space, u32, atomic::kAddFloat>, kByReturn},       \
  {prefix "atomic_cmpswap", compare_and_swap<space, u32>, kByReturn},                \
  {prefix "atomic_cmpswap_x2", compare_and_swap<space, u64>, kByReturn}

constexpr Entry kTable[] = {
    MONOREF_LOADS_STORES("flat_", Space::kFlat),
    MONOREF_LOADS_STORES("global_", Space::kGlobal),
    MONOREF_LOADS_STORES("scratch_", Space::kScratch),
    MONOREF_ATOMICS("flat_", Space::kFlat),
    MONOREF_ATOMICS("global_", Space::kGlobal),
    // Caches hold nothing here.
    {"buffer_inv", nothing, kNoOperands},
    {"buffer_wbl2", nothing, kNoOperands},
};
// clang-format on

}  // namespace

std::span<const Entry> flat_table() {
  return kTable;
}

}  // namespace monoref::device::gfx
