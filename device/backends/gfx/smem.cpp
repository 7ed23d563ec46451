// Scalar memory: the lowest two bits of addresses do not count.
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
void nothing(Wave&, const Inst&) {}
void s_memtime(Wave& w, const Inst& i) {
  set_scalar64(w, i.dst[0], w.pc);
}

constexpr Entry kTable[] = {
    {"s_load_dword", load<1>},   {"s_load_dwordx2", load<2>},   {"s_load_dwordx4", load<4>},
    {"s_load_dwordx8", load<8>}, {"s_load_dwordx16", load<16>}, {"s_dcache_inv", nothing, 0},
    {"s_dcache_wb", nothing, 0}, {"s_memtime", s_memtime},      {"s_memrealtime", s_memtime},
};

}  // namespace

std::span<const Entry> smem_table() {
  return kTable;
}

}  // namespace monoref::device::gfx
