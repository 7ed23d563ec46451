// The state of one wave of 64 lanes and the form in which its instructions are executed.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "device/backends/gfx/manner.hpp"

namespace monoref::device::gfx {

constexpr unsigned kLanes = 64;
constexpr unsigned kVectorRegisters = 512;  ///< v0 to v255, and from 256 on a0 to a255
constexpr unsigned kFirstAccumulator = 256;

/// Where the windows of flat addresses begin. No pointer of a process lies there.
constexpr std::uint64_t kPrivateAperture = std::uint64_t{1} << 48;
constexpr std::uint64_t kSharedAperture = std::uint64_t{2} << 48;
constexpr std::uint64_t kApertureBytes = std::uint64_t{1} << 32;

/// Scalar registers by the number that instructions have for them.
enum Scalar : std::uint16_t {
  kVcc = 106,
  kM0 = 124,
  kExec = 126,
  kScalarRegisters = 128,
  kVccz = 251,
  kExecz = 252,
  kScc = 253,
};

class Wave;
struct Inst;
using Handler = void (*)(Wave&, const Inst&);

/// What an instruction did wrong: a verdict on the kernel.
struct Fault {
  std::string message;
  bool by_lane = false;  ///< the wave's `lane` did it
};
/// What this executor cannot execute: no verdict at all.
struct Unsupported {
  std::string message;
};

enum class OperandKind : std::uint8_t { kNone, kVector, kScalar, kConstant };

/// Which part of a 32-bit register SDWA selects.
enum class Select : std::uint8_t { kByte0, kByte1, kByte2, kByte3, kWord0, kWord1, kDword };

struct Operand {
  OperandKind kind = OperandKind::kNone;
  bool negate = false, absolute = false, extend = false;  ///< source modifiers
  Select select = Select::kDword;
  bool permuted = false;  ///< DPP moves its lanes
  std::uint16_t index = 0;
  std::uint64_t value = 0;  ///< of a constant
};

/// How DPP moves lanes: lane l reads lane from[l], or none where that is negative.
struct LaneMoves {
  std::array<std::int8_t, kLanes> from{};
  std::uint64_t enabled = ~std::uint64_t{0};  ///< by row_mask and bank_mask
  bool zero_where_none = false;               ///< bound_ctrl
};

/// What the rest of SDWA's register becomes.
enum class Unused : std::uint8_t { kPad, kSext, kPreserve };

/// One decoded instruction.
struct Inst {
  Handler run = nullptr;
  std::array<Operand, 2> dst{};
  std::array<Operand, 6> src{};
  std::uint8_t sources = 0;
  bool direct = true;  ///< the result goes to its register as it is, where EXEC is full
  bool clamp = false;
  std::uint8_t output_modifier = 0;  ///< 1: times 2, 2: times 4, 3: divided by 2
  std::uint8_t op_sel = 0, op_sel_hi = 0xff, neg_lo = 0, neg_hi = 0;
  Select dst_select = Select::kDword;
  Unused dst_unused = Unused::kPad;
  bool sdwa = false;
  bool returns = false;  ///< an atomic that gives what it found
  bool offen = false, idxen = false, to_lds = false;
  std::uint8_t cbsz = 0, abid = 0, blgp = 0;
  std::uint16_t table = 0;  ///< the truth table of bitop3
  std::int32_t offset = 0, offset1 = 0;
  std::uint32_t index = 0;   ///< of this instruction in its program
  std::uint32_t target = 0;  ///< of a branch, as an index
  const LaneMoves* moves = nullptr;
};

/// A row of a register for all lanes, aligned for vector instructions.
struct alignas(64) Lanes {
  std::array<std::uint32_t, kLanes> at;
};

/// MODE bits that change results.
struct Mode {
  std::uint8_t round32 = 0, round64 = 0;    ///< 0 nearest even, 1 up, 2 down, 3 toward zero
  std::uint8_t denorm32 = 3, denorm64 = 3;  ///< bit 0: subnormal inputs are kept, bit 1: outputs
  bool dx10_clamp = true, ieee = true;
  bool fp16_overflow = false;
};

/// Bytes of device memory that a kernel may touch.
struct Extent {
  std::uintptr_t begin = 0, end = 0;
  bool readable = true, writable = true;
  std::string_view buffer;  ///< whose they are; canaries beside a buffer have its name, too
};

/// Which addresses of the process are device memory.
class Memory {
 public:
  void set(std::vector<Extent> extents) {
    extents_ = std::move(extents);
    last_ = {};
  }
  /// `bytes` at `address`; throws Fault if they are not all the kernel's.
  std::byte* at(std::uint64_t address, std::size_t bytes, bool write) {
    if (address - last_.begin < last_.end - last_.begin && address + bytes <= last_.end &&
        (write ? last_.writable : last_.readable)) [[likely]]
      return reinterpret_cast<std::byte*>(address);
    return find(address, bytes, write);
  }

 private:
  std::byte* find(std::uint64_t address, std::size_t bytes, bool write);
  std::string place_of(std::uint64_t address) const;

  std::vector<Extent> extents_;  ///< ascending and disjoint
  Extent last_{};
};

enum class WaveState : std::uint8_t { kRunning, kAtBarrier, kEnded };

/// What the waves of a block share.
struct Shared {
  std::vector<std::byte> bytes;  ///< LDS
  /// `size` bytes of LDS; throws Fault if they are not all there.
  std::byte* at(std::uint64_t address, std::size_t size, bool write) {
    if (address + size > bytes.size() || address + size < address) [[unlikely]]
      overrun(address, size, write);
    return bytes.data() + address;
  }
  [[noreturn]] void overrun(std::uint64_t address, std::size_t size, bool write) const;
};

class Program;

class Wave {
 public:
  /// The row of vector register `index`.
  std::uint32_t* row(unsigned index) { return registers + std::size_t{index} * kLanes; }
  std::uint64_t exec() const { return pair(kExec); }
  std::uint64_t pair(unsigned index) const {
    std::uint64_t value = 0;
    std::memcpy(&value, &scalar[index], sizeof value);
    return value;
  }
  void set_pair(unsigned index, std::uint64_t value) {
    std::memcpy(&scalar[index], &value, sizeof value);
  }
  /// All ones where a lane of EXEC is active, else zero.
  const std::uint32_t* mask() {
    if (mask_of != exec()) expand_mask();
    return mask_lanes.at.data();
  }
  std::byte* scratch_at(unsigned lane, std::uint64_t address, std::size_t bytes);
  void expand_mask();

  std::uint32_t* registers = nullptr;  ///< kVectorRegisters rows
  std::array<std::uint32_t, kScalarRegisters> scalar{};
  bool scc = false;
  Mode mode;
  bool flush32 = false;  ///< subnormals of binary32 are not all kept
  std::uint32_t pc = 0;  ///< index of the next instruction
  bool stop = false;     ///< gives the scheduler a turn
  WaveState state = WaveState::kRunning;
  unsigned number = 0;  ///< in its block
  unsigned lane = 0;    ///< whose access is being made, for messages
  const Program* program = nullptr;
  Memory* memory = nullptr;
  Shared* shared = nullptr;
  Observations* observed = nullptr;
  MatrixModel matrix = MatrixModel::kExact;
  bool fnuz = false;               ///< FP8 as gfx942 has it
  std::vector<std::byte> scratch;  ///< private_bytes a lane
  std::size_t private_bytes = 0;
  std::uint64_t mask_of = 0;
  Lanes mask_lanes{};
};

/// Applies MODE's rounding to this thread's arithmetic, and notes whether subnormals are flushed.
void apply_mode(Wave& wave);

}  // namespace monoref::device::gfx
