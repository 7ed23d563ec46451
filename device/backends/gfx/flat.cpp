// FLAT, GLOBAL and SCRATCH. A flat address lies in LDS, in a lane's scratch or in global memory.
#include "device/backends/gfx/transfer.hpp"

namespace monoref::device::gfx {
namespace {

enum class Space : std::uint8_t { kFlat, kGlobal, kScratch };

/// One instruction's addresses: its first source, and the scalar base that ends its sources.
template <Space kSpace>
class Addresses {
 public:
  static constexpr bool kChecked = false;
  static constexpr int kAtomicResults = kByReturn;
  static const Operand& data(const Inst& i) { return i.src[1]; }
  static const Operand& found(const Inst& i) { return i.dst[0]; }

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
  std::byte* at(unsigned lane, std::size_t bytes, bool write, unsigned further = 0) const {
    if constexpr (kSpace == Space::kScratch) {
      const u64 address =
          base_ + (low_ == nullptr ? 0 : low_[lane]) + static_cast<u64>(i64{offset_}) + further;
      return w_.scratch_at(lane, address & 0xffffffff, bytes);
    } else {
      u64 address = base_ + static_cast<u64>(i64{offset_}) + low_[lane] + further;
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

using Flat = Addresses<Space::kFlat>;
using Global = Addresses<Space::kGlobal>;
using Scratch = Addresses<Space::kScratch>;

// clang-format off
constexpr Entry kTable[] = {
    MONOREF_LOADS_STORES("flat_", Flat),
    MONOREF_LOADS_STORES("global_", Global),
    MONOREF_LOADS_STORES("scratch_", Scratch),
    MONOREF_LOADS_TO_LDS("global_load_lds_", Global),
    MONOREF_LOADS_TO_LDS("scratch_load_lds_", Scratch),
    MONOREF_ATOMICS("flat_", Flat),
    MONOREF_ATOMICS("global_", Global),
};
// clang-format on

}  // namespace

std::span<const Entry> flat_table() {
  return kTable;
}

}  // namespace monoref::device::gfx
