// LDS, and the moves between lanes that go through it.
#include "device/backends/gfx/memory.hpp"
#include "device/backends/gfx/table.hpp"

namespace monoref::device::gfx {
namespace {

/// The address operand of reads is their first source, and so is that of writes.
const u32* addresses(Wave& w, const Inst& i) {
  return w.row(i.src[0].index);
}

template <class T, Into kInto = Into::kWhole>
void read(Wave& w, const Inst& i) {
  const u32* const at = addresses(w, i);
  u32* const d = w.row(i.dst[0].index);
  each_active(w, [&](unsigned l) {
    const u32 address = at[l] + static_cast<u32>(i.offset);
    put<T, kInto>(d, l, fetch<T>(w.shared->at(address, sizeof(T), false)));
  });
}
template <unsigned kWords>
void read_words(Wave& w, const Inst& i) {
  const u32* const at = addresses(w, i);
  each_active(w, [&](unsigned l) {
    const u32 address = at[l] + static_cast<u32>(i.offset);
    load_words<kWords>(w, i.dst[0].index, l, w.shared->at(address, 4 * kWords, false));
  });
}
/// Two places, whose offsets count elements, or 64 elements.
template <unsigned kWords, unsigned kStep>
void read_two(Wave& w, const Inst& i) {
  constexpr unsigned kUnit = 4 * kWords * kStep;
  const u32* const at = addresses(w, i);
  each_active(w, [&](unsigned l) {
    const u32 address = at[l];
    const u32 first = address + static_cast<u32>(i.offset) * kUnit;
    const u32 second = address + static_cast<u32>(i.offset1) * kUnit;
    std::array<u32, 2 * kWords> words;
    std::memcpy(&words[0], w.shared->at(first, 4 * kWords, false), 4 * kWords);
    std::memcpy(&words[kWords], w.shared->at(second, 4 * kWords, false), 4 * kWords);
    for (unsigned n = 0; n < 2 * kWords; ++n) w.row(i.dst[0].index + n)[l] = words[n];
  });
}
template <class T, unsigned kShift = 0>
void write(Wave& w, const Inst& i) {
  const u32* const at = addresses(w, i);
  const u32* const data = w.row(i.src[1].index);
  each_active(w, [&](unsigned l) {
    const u32 address = at[l] + static_cast<u32>(i.offset);
    keep(w.shared->at(address, sizeof(T), true), static_cast<T>(data[l] >> kShift));
  });
}
template <unsigned kWords>
void write_words(Wave& w, const Inst& i) {
  const u32* const at = addresses(w, i);
  each_active(w, [&](unsigned l) {
    const u32 address = at[l] + static_cast<u32>(i.offset);
    store_words<kWords>(w, i.src[1], l, w.shared->at(address, 4 * kWords, true));
  });
}
template <unsigned kWords, unsigned kStep>
void write_two(Wave& w, const Inst& i) {
  constexpr unsigned kUnit = 4 * kWords * kStep;
  const u32* const at = addresses(w, i);
  each_active(w, [&](unsigned l) {
    const u32 address = at[l];
    const u32 first = address + static_cast<u32>(i.offset) * kUnit;
    const u32 second = address + static_cast<u32>(i.offset1) * kUnit;
    store_words<kWords>(w, i.src[1], l, w.shared->at(first, 4 * kWords, true));
    store_words<kWords>(w, i.src[2], l, w.shared->at(second, 4 * kWords, true));
  });
}
template <class T, auto F, bool kReturns>
void change(Wave& w, const Inst& i) {
  const u32* const at = addresses(w, i);
  each_active(w, [&](unsigned l) {
    std::byte* const place = w.shared->at(at[l] + static_cast<u32>(i.offset), sizeof(T), true);
    const T old = fetch<T>(place);
    keep(place, static_cast<T>(F(old, data_of<T>(w, i.src[1], l))));
    if (kReturns) give_data(w, i.dst[0], l, old);
  });
}
/// Writes the second data operand where the first is found.
template <class T, bool kReturns>
void compare_and_store(Wave& w, const Inst& i) {
  const u32* const at = addresses(w, i);
  each_active(w, [&](unsigned l) {
    std::byte* const place = w.shared->at(at[l] + static_cast<u32>(i.offset), sizeof(T), true);
    const T old = fetch<T>(place);
    if (old == data_of<T>(w, i.src[1], l)) keep(place, data_of<T>(w, i.src[2], l));
    if (kReturns) give_data(w, i.dst[0], l, old);
  });
}

/// In each 16 lanes, elements of `kBits` bits change places: lane l takes of its n elements the
/// j-th from lane j 16 / n + l / n, where it is the (l % n)-th.
template <unsigned kBits, unsigned kWords>
void read_transposed(Wave& w, const Inst& i) {
  constexpr unsigned kRow = 16;
  constexpr unsigned kCount = 32 * kWords / kBits;
  std::array<std::array<u32, kWords>, kLanes> read{};
  const u32* const at = addresses(w, i);
  each_active(w, [&](unsigned l) {
    const u32 address = at[l] + static_cast<u32>(i.offset);
    std::memcpy(&read[l], w.shared->at(address, 4 * kWords, false), 4 * kWords);
  });
  std::array<Lanes, kWords> out{};
  for (unsigned l = 0; l < kLanes; ++l)
    for (unsigned j = 0; j < kCount; ++j) {
      const unsigned from = (l & ~(kRow - 1)) + j * (kRow / kCount) + l % kRow / kCount;
      const unsigned taken = l % kCount * kBits;
      const unsigned placed = j * kBits;
      const u32 element = read[from][taken / 32] >> taken % 32 & ((1U << kBits) - 1);
      out[placed / 32].at[l] |= element << placed % 32;
    }
  for (unsigned n = 0; n < kWords; ++n) write_row(w, i, i.dst[0].index + n, out[n]);
}

/// Every lane reads the lane that it names; 0 where that is not active.
void ds_bpermute_b32(Wave& w, const Inst& i) {
  const u32* const at = addresses(w, i);
  const u32* const data = w.row(i.src[1].index);
  Lanes out;
  const u64 active = w.exec();
  for (unsigned l = 0; l < kLanes; ++l) {
    const unsigned from = (at[l] + static_cast<u32>(i.offset)) >> 2 & 63;
    out.at[l] = (active >> from & 1) != 0 ? data[from] : 0;
  }
  write_row(w, i, i.dst[0].index, out);
}
/// Every active lane writes to the lane that it names, the highest last; 0 where none does.
void ds_permute_b32(Wave& w, const Inst& i) {
  const u32* const at = addresses(w, i);
  const u32* const data = w.row(i.src[1].index);
  Lanes out{};
  each_active(
      w, [&](unsigned l) { out.at[(at[l] + static_cast<u32>(i.offset)) >> 2 & 63] = data[l]; });
  write_row(w, i, i.dst[0].index, out);
}

constexpr Entry kTable[] = {
    {"ds_read_b32", read<u32>},
    {"ds_read_u8", read<std::uint8_t>},
    {"ds_read_i8", read<std::int8_t>},
    {"ds_read_u16", read<u16>},
    {"ds_read_i16", read<i16>},
    {"ds_read_u8_d16", read<std::uint8_t, Into::kLow>},
    {"ds_read_u8_d16_hi", read<std::uint8_t, Into::kHigh>},
    {"ds_read_i8_d16", read<std::int8_t, Into::kLow>},
    {"ds_read_i8_d16_hi", read<std::int8_t, Into::kHigh>},
    {"ds_read_u16_d16", read<u16, Into::kLow>},
    {"ds_read_u16_d16_hi", read<u16, Into::kHigh>},
    {"ds_read_b64", read_words<2>},
    {"ds_read_b96", read_words<3>},
    {"ds_read_b128", read_words<4>},
    {"ds_read2_b32", read_two<1, 1>},
    {"ds_read2st64_b32", read_two<1, 64>},
    {"ds_read2_b64", read_two<2, 1>},
    {"ds_read2st64_b64", read_two<2, 64>},
    {"ds_write_b8", write<std::uint8_t>, 0},
    {"ds_write_b16", write<u16>, 0},
    {"ds_write_b8_d16_hi", write<std::uint8_t, 16>, 0},
    {"ds_write_b16_d16_hi", write<u16, 16>, 0},
    {"ds_write_b32", write<u32>, 0},
    {"ds_write_b64", write_words<2>, 0},
    {"ds_write_b96", write_words<3>, 0},
    {"ds_write_b128", write_words<4>, 0},
    {"ds_write2_b32", write_two<1, 1>, 0},
    {"ds_write2st64_b32", write_two<1, 64>, 0},
    {"ds_write2_b64", write_two<2, 1>, 0},
    {"ds_write2st64_b64", write_two<2, 64>, 0},
    {"ds_add_u32", change<u32, atomic::kAdd, false>, 0},
    {"ds_sub_u32", change<u32, atomic::kSub, false>, 0},
    {"ds_inc_u32", change<u32, atomic::kIncrement, false>, 0},
    {"ds_dec_u32", change<u32, atomic::kDecrement, false>, 0},
    {"ds_min_i32", change<i32, atomic::kMin, false>, 0},
    {"ds_max_i32", change<i32, atomic::kMax, false>, 0},
    {"ds_min_u32", change<u32, atomic::kMin, false>, 0},
    {"ds_max_u32", change<u32, atomic::kMax, false>, 0},
    {"ds_and_b32", change<u32, atomic::kAnd, false>, 0},
    {"ds_or_b32", change<u32, atomic::kOr, false>, 0},
    {"ds_xor_b32", change<u32, atomic::kXor, false>, 0},
    {"ds_add_f32", change<u32, atomic::kAddFloat, false>, 0},
    {"ds_cmpst_b32", compare_and_store<u32, false>, 0},
    {"ds_add_rtn_u32", change<u32, atomic::kAdd, true>},
    {"ds_sub_rtn_u32", change<u32, atomic::kSub, true>},
    {"ds_inc_rtn_u32", change<u32, atomic::kIncrement, true>},
    {"ds_dec_rtn_u32", change<u32, atomic::kDecrement, true>},
    {"ds_min_rtn_i32", change<i32, atomic::kMin, true>},
    {"ds_max_rtn_i32", change<i32, atomic::kMax, true>},
    {"ds_min_rtn_u32", change<u32, atomic::kMin, true>},
    {"ds_max_rtn_u32", change<u32, atomic::kMax, true>},
    {"ds_and_rtn_b32", change<u32, atomic::kAnd, true>},
    {"ds_or_rtn_b32", change<u32, atomic::kOr, true>},
    {"ds_xor_rtn_b32", change<u32, atomic::kXor, true>},
    {"ds_wrxchg_rtn_b32", change<u32, atomic::kSwap, true>},
    {"ds_add_rtn_f32", change<u32, atomic::kAddFloat, true>},
    {"ds_cmpst_rtn_b32", compare_and_store<u32, true>},
    {"ds_add_u64", change<u64, atomic::kAdd, false>, 0},
    {"ds_sub_u64", change<u64, atomic::kSub, false>, 0},
    {"ds_min_i64", change<i64, atomic::kMin, false>, 0},
    {"ds_max_i64", change<i64, atomic::kMax, false>, 0},
    {"ds_min_u64", change<u64, atomic::kMin, false>, 0},
    {"ds_max_u64", change<u64, atomic::kMax, false>, 0},
    {"ds_and_b64", change<u64, atomic::kAnd, false>, 0},
    {"ds_or_b64", change<u64, atomic::kOr, false>, 0},
    {"ds_xor_b64", change<u64, atomic::kXor, false>, 0},
    {"ds_cmpst_b64", compare_and_store<u64, false>, 0},
    {"ds_add_rtn_u64", change<u64, atomic::kAdd, true>},
    {"ds_sub_rtn_u64", change<u64, atomic::kSub, true>},
    {"ds_min_rtn_i64", change<i64, atomic::kMin, true>},
    {"ds_max_rtn_i64", change<i64, atomic::kMax, true>},
    {"ds_min_rtn_u64", change<u64, atomic::kMin, true>},
    {"ds_max_rtn_u64", change<u64, atomic::kMax, true>},
    {"ds_wrxchg_rtn_b64", change<u64, atomic::kSwap, true>},
    {"ds_cmpst_rtn_b64", compare_and_store<u64, true>},
    {"ds_min_f32", change<u32, atomic::kMinFloat, false>, 0},
    {"ds_max_f32", change<u32, atomic::kMaxFloat, false>, 0},
    {"ds_add_f64", change<u64, atomic::kAddDouble, false>, 0},
    {"ds_add_rtn_f64", change<u64, atomic::kAddDouble, true>},
    {"ds_min_rtn_f32", change<u32, atomic::kMinFloat, true>},
    {"ds_max_rtn_f32", change<u32, atomic::kMaxFloat, true>},
    {"ds_pk_add_f16", change<u32, atomic::kAddHalves<kBinary16>, false>, 0},
    {"ds_pk_add_bf16", change<u32, atomic::kAddHalves<kBfloat16>, false>, 0},
    {"ds_pk_add_rtn_f16", change<u32, atomic::kAddHalves<kBinary16>, true>},
    {"ds_pk_add_rtn_bf16", change<u32, atomic::kAddHalves<kBfloat16>, true>},
    {"ds_read_b64_tr_b16", read_transposed<16, 2>},
    {"ds_read_b64_tr_b8", read_transposed<8, 2>},
    {"ds_bpermute_b32", ds_bpermute_b32},
    {"ds_permute_b32", ds_permute_b32},
};

}  // namespace

std::span<const Entry> ds_table() {
  return kTable;
}

}  // namespace monoref::device::gfx
