// Scalar memory: the lowest two bits of addresses do not count.
#include <algorithm>

#include "device/backends/gfx/memory.hpp"
#include "device/backends/gfx/table.hpp"

namespace monoref::device::gfx {
namespace {

/// Base, offset in a register or a constant, and perhaps a constant more.
template <unsigned kWords>
void load(Wave& w, const Inst& i) {
  const u64 offset = scalar32(w, i.src[1]) + static_cast<i64>(i.offset);
  const u64 address = (scalar64(w, i.src[0]) & ~u64{3}) + (offset & ~u64{3});
  w.lane = kLanes;  // no lane's access
  const std::byte* const from = w.memory->at(address, 4 * kWords, false);
  std::memcpy(&w.scalar[i.dst[0].index], from, std::size_t{4} * kWords);
}
/// Through a buffer descriptor; what lies behind its end is 0.
template <unsigned kWords>
void buffer_load(Wave& w, const Inst& i) {
  const u16 first = i.src[0].index;
  const u64 base = w.scalar[first] | u64{w.scalar[first + 1U] & 0xffff} << 32;
  const u32 stride = w.scalar[first + 1U] >> 16 & 0x3fff;
  const u64 records = u64{w.scalar[first + 2U]} * std::max(stride, 1U);
  const u64 offset = (scalar32(w, i.src[1]) + static_cast<u64>(i64{i.offset})) & ~u64{3};
  w.lane = kLanes;  // no lane's access
  std::array<u32, kWords> words{};
  for (unsigned n = 0; n < kWords; ++n)
    if (offset + 4 * n < records)
      words[n] = fetch<u32>(w.memory->at((base & ~u64{3}) + offset + 4 * n, 4, false));
  std::memcpy(&w.scalar[i.dst[0].index], words.data(), sizeof words);
}
void nothing(Wave&, const Inst&) {}
void s_memtime(Wave& w, const Inst& i) {
  set_scalar64(w, i.dst[0], w.pc);
}

constexpr Entry kTable[] = {
    {"s_buffer_load_dword", buffer_load<1>},
    {"s_buffer_load_dwordx2", buffer_load<2>},
    {"s_buffer_load_dwordx4", buffer_load<4>},
    {"s_buffer_load_dwordx8", buffer_load<8>},
    {"s_buffer_load_dwordx16", buffer_load<16>},
    {"s_load_dword", load<1>},
    {"s_load_dwordx2", load<2>},
    {"s_load_dwordx4", load<4>},
    {"s_load_dwordx8", load<8>},
    {"s_load_dwordx16", load<16>},
    {"s_dcache_inv", nothing, 0},
    {"s_dcache_wb", nothing, 0},
    {"s_memtime", s_memtime},
    {"s_memrealtime", s_memtime},
};

}  // namespace

std::span<const Entry> smem_table() {
  return kTable;
}

}  // namespace monoref::device::gfx
