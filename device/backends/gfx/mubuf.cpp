// MUBUF: memory through buffer descriptors, which bound it.
#include <limits>

#include "device/backends/gfx/transfer.hpp"

namespace monoref::device::gfx {
namespace {

/// A descriptor of four scalar registers.
struct Descriptor {
  u64 base;
  u32 stride, records;
  bool swizzled, with_lane;

  Descriptor(const Wave& w, const Operand& first) {
    const auto word = [&](unsigned n) { return w.scalar[first.index + n]; };
    base = word(0) | u64{word(1) & 0xffff} << 32;
    stride = word(1) >> 16 & 0x3fff;
    records = word(2);
    swizzled = word(1) >> 31 != 0;
    with_lane = (word(3) >> 23 & 1) != 0;
  }
};

/// One instruction's addresses: a vector operand with index or offset or both, the descriptor, a
/// scalar offset. Stores and atomics have their data before these.
class Buffer {
 public:
  static constexpr bool kChecked = true;
  static constexpr int kAtomicResults = 0;  // what an atomic found goes where its data was
  static const Operand& data(const Inst& i) { return i.src[0]; }
  static const Operand& found(const Inst& i) { return i.src[0]; }

  Buffer(Wave& w, const Inst& i)
      : w_(w),
        descriptor_(w, i.src[i.sources - 2U]),
        scalar_(scalar32(w, i.src[i.sources - 1U])),
        offset_(static_cast<u32>(i.offset)) {
    if (descriptor_.swizzled || descriptor_.with_lane)
      throw Unsupported{"a buffer descriptor that swizzles or adds the lane"};
    const Operand& vector = i.src[i.sources - 3U];
    if (i.idxen) index_ = w.row(vector.index);
    if (i.offen) offsets_ = w.row(vector.index + (i.idxen ? 1U : 0U));
  }

  std::byte* at(unsigned lane, std::size_t bytes, bool write, unsigned further = 0) const {
    const u64 index = index_ == nullptr ? 0 : index_[lane];
    const u64 offset = u64{offset_} + (offsets_ == nullptr ? 0 : offsets_[lane]) + further;
    // Records are bytes, or elements of `stride` bytes.
    const bool outside = descriptor_.stride == 0 ? offset + scalar_ >= descriptor_.records
                                                 : index >= descriptor_.records;
    if (outside) return nullptr;
    return w_.memory->at(descriptor_.base + scalar_ + offset + index * descriptor_.stride, bytes,
                         write);
  }

 private:
  Wave& w_;
  Descriptor descriptor_;
  const u32* index_ = nullptr;
  const u32* offsets_ = nullptr;
  u32 scalar_, offset_;
};

/// The same mnemonic loads to registers and, with `lds`, to LDS.
template <Handler kToRegisters, Handler kToShared>
void either(Wave& w, const Inst& i) {
  (i.to_lds ? kToShared : kToRegisters)(w, i);
}

void nothing(Wave&, const Inst&) {}

// clang-format off
constexpr Entry kTable[] = {
    {"buffer_load_ubyte", either<load<Buffer, std::uint8_t, Into::kWhole>, load_to_lds<Buffer, std::uint8_t, 1>>},
    {"buffer_load_sbyte", either<load<Buffer, std::int8_t, Into::kWhole>, load_to_lds<Buffer, std::int8_t, 1>>},
    {"buffer_load_ushort", either<load<Buffer, u16, Into::kWhole>, load_to_lds<Buffer, u16, 1>>},
    {"buffer_load_sshort", either<load<Buffer, i16, Into::kWhole>, load_to_lds<Buffer, i16, 1>>},
    {"buffer_load_dword", either<load<Buffer, u32, Into::kWhole>, load_to_lds<Buffer, u32, 1>>},
    {"buffer_load_dwordx3", either<load_many<Buffer, 3>, load_to_lds<Buffer, u32, 3>>},
    {"buffer_load_dwordx4", either<load_many<Buffer, 4>, load_to_lds<Buffer, u32, 4>>},
    MONOREF_LOADS_STORES("buffer_", Buffer),
    MONOREF_ATOMICS("buffer_", Buffer),
    // Caches hold nothing here.
    {"buffer_inv", nothing, kNoOperands},
    {"buffer_wbl2", nothing, kNoOperands},
};
// clang-format on

}  // namespace

std::span<const Entry> mubuf_table() {
  return kTable;
}

}  // namespace monoref::device::gfx
