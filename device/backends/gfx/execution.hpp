// One launch: its blocks and waves, and whose turn it is.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "device/backend.hpp"
#include "device/backends/gfx/manner.hpp"
#include "device/backends/gfx/object.hpp"

namespace monoref::device::gfx {

/// Memory of waves and blocks, used again from launch to launch.
struct Pools {
  struct Registers {
    std::vector<Lanes> rows = std::vector<Lanes>(kVectorRegisters);
  };
  std::vector<std::unique_ptr<Registers>> registers;
  std::vector<std::uint32_t> garbage;
};

class Execution {
 public:
  /// `arguments` are the bytes of the kernel's argument segment; they live as long as the launch.
  Execution(CodeObject& object, const Kernel& kernel, const Grid& grid,
            std::vector<std::byte> arguments, Memory& memory, Pools& pools, const Manner& manner);
  ~Execution();
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;

  /// Runs about so many instructions; true when all blocks have ended. Throws Fault, whose message
  /// names the place, and Unsupported likewise.
  bool run(std::uint64_t instructions);
  /// Where every wave that lives is: for what never ends.
  std::string whereabouts() const;
  std::uint64_t executed() const { return executed_; }
  /// What the launch has done so far.
  Observations observed() const;

 private:
  struct Block;

  void start_blocks();
  void start_wave(Block& block, unsigned number);
  void set_scalars(Wave& wave, const Block& block) const;
  void set_item_ids(Wave& wave, unsigned number) const;
  std::uint64_t turn(Block& block, Wave& wave, std::uint64_t limit);
  void after_turn(Block& block, Wave& wave);
  std::string place_of(const Block& block, const Wave& wave) const;
  std::uint64_t turn_length();

  CodeObject& object_;
  const Kernel& kernel_;
  const Program& program_;
  Grid grid_;
  std::vector<std::byte> arguments_;
  Memory& memory_;
  Pools& pools_;
  Manner manner_;
  Observations observed_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Block>> blocks_;  ///< resident
  std::size_t turn_ = 0;
  std::uint64_t next_block_ = 0, block_count_ = 0;
  std::uint64_t executed_ = 0;
};

/// The argument segment of a kernel: `values` in order, and the hidden arguments of this launch.
/// Throws Unsupported where the kernel has other arguments.
std::vector<std::byte> argument_segment(const Kernel& kernel, const Grid& grid,
                                        std::span<const std::span<const std::byte>> values);

}  // namespace monoref::device::gfx
