#include "device/backends/gfx/execution.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cfenv>
#include <cstring>

#include "device/backends/gfx/vector.hpp"

namespace monoref::device::gfx {
namespace {

constexpr std::size_t kGarbageWords = std::size_t{1} << 18;
/// Blocks that interleave where the kernel does not ask for all of them.
constexpr std::size_t kResident = 4;
/// A wave that never waits gives others a turn after so many instructions.
constexpr std::uint64_t kRunAheadTurn = 1 << 14;
constexpr std::uint64_t kShortTurn = 32;
constexpr std::uint64_t kRandomTurn = 200;

/// Fills memory with garbage that depends on the seed and on `salt`.
void spoil(Pools& pools, std::uint64_t salt, std::span<std::byte> memory) {
  if (pools.garbage.empty()) {
    pools.garbage.resize(kGarbageWords);
    std::mt19937 generator(0x6d6f6e6f);
    for (std::uint32_t& word : pools.garbage) word = generator();
  }
  const std::size_t bytes = pools.garbage.size() * sizeof(std::uint32_t);
  std::size_t from = static_cast<std::size_t>(salt * 0x9e3779b97f4a7c15U >> 40) * 4 % bytes;
  while (!memory.empty()) {
    const std::size_t part = std::min(memory.size(), bytes - from);
    std::memcpy(memory.data(), reinterpret_cast<const std::byte*>(pools.garbage.data()) + from,
                part);
    memory = memory.subspan(part);
    from = 0;
  }
}

std::uint32_t threads_of(const Grid& grid) {
  return grid.threads_x * grid.threads_y * grid.threads_z;
}

}  // namespace

struct Execution::Block {
  std::uint64_t number = 0;
  std::uint32_t x = 0, y = 0, z = 0;
  Shared shared;
  std::vector<std::unique_ptr<Pools::Registers>> registers;
  std::vector<std::unique_ptr<Wave>> waves;
  std::size_t running = 0, waiting = 0;
};

Execution::Execution(CodeObject& object, const Kernel& kernel, const Grid& grid,
                     std::vector<std::byte> arguments, Memory& memory, Pools& pools,
                     const Manner& manner)
    : object_(object),
      kernel_(kernel),
      program_(object.program()),
      grid_(grid),
      arguments_(std::move(arguments)),
      memory_(memory),
      pools_(pools),
      manner_(manner),
      random_(manner.seed),
      block_count_(std::uint64_t{grid.blocks_x} * grid.blocks_y * grid.blocks_z) {}

Execution::~Execution() {
  for (auto& block : blocks_)
    for (auto& registers : block->registers) pools_.registers.push_back(std::move(registers));
}

void Execution::start_blocks() {
  const std::size_t most = grid_.cooperative                         ? block_count_
                           : manner_.schedule == Schedule::kRunAhead ? 1
                                                                     : kResident;
  while (blocks_.size() < most && next_block_ < block_count_) {
    auto block = std::make_unique<Block>();
    block->number = next_block_++;
    block->x = static_cast<std::uint32_t>(block->number % grid_.blocks_x);
    block->y = static_cast<std::uint32_t>(block->number / grid_.blocks_x % grid_.blocks_y);
    block->z = static_cast<std::uint32_t>(block->number / grid_.blocks_x / grid_.blocks_y);
    block->shared.bytes.resize(kernel_.shared_bytes + grid_.shared_bytes);
    spoil(pools_, manner_.seed + 7 * block->number, block->shared.bytes);
    const unsigned waves = (threads_of(grid_) + kLanes - 1) / kLanes;
    for (unsigned number = 0; number < waves; ++number) start_wave(*block, number);
    block->running = waves;
    blocks_.push_back(std::move(block));
  }
}

void Execution::start_wave(Block& block, unsigned number) {
  if (pools_.registers.empty()) pools_.registers.push_back(std::make_unique<Pools::Registers>());
  block.registers.push_back(std::move(pools_.registers.back()));
  pools_.registers.pop_back();
  auto& rows = block.registers.back()->rows;
  const std::uint64_t salt = manner_.seed * 1000003 + block.number * 64 + number;
  const std::size_t accumulators = std::min<std::size_t>(kernel_.accumulators, kFirstAccumulator);
  const std::size_t vectors = std::min<std::size_t>(kernel_.vector_registers, kFirstAccumulator);
  spoil(pools_, salt, std::as_writable_bytes(std::span(rows).first(vectors)));
  spoil(pools_, salt + 1,
        std::as_writable_bytes(std::span(rows).subspan(kFirstAccumulator, accumulators)));
  auto wave = std::make_unique<Wave>();
  spoil(pools_, salt + 2, std::as_writable_bytes(std::span(wave->scalar)));
  wave->registers = rows.front().at.data();
  wave->number = number;
  wave->program = &program_;
  wave->memory = &memory_;
  wave->shared = &block.shared;
  wave->observed = &observed_;
  wave->matrix = manner_.matrix;
  wave->fnuz = program_.chip == "gfx942";
  wave->private_bytes = kernel_.private_bytes;
  wave->scratch.resize(wave->private_bytes * kLanes);
  spoil(pools_, salt + 3, wave->scratch);
  wave->mode = kernel_.mode;
  const unsigned lanes = std::min(kLanes, threads_of(grid_) - number * kLanes);
  wave->set_pair(kExec, lanes == kLanes ? ~std::uint64_t{0} : (std::uint64_t{1} << lanes) - 1);
  wave->expand_mask();
  set_scalars(*wave, block);
  set_item_ids(*wave, number);
  block.waves.push_back(std::move(wave));
}

/// The user registers that the descriptor asks for, and the block's coordinates behind them.
void Execution::set_scalars(Wave& wave, const Block& block) const {
  unsigned at = 0;
  const auto pointer = [&](bool wanted, std::uint64_t value) {
    if (!wanted) return;
    wave.set_pair(at, value);
    at += 2;
  };
  if (kernel_.private_buffer) at += 4;
  pointer(kernel_.dispatch_pointer, 0);
  pointer(kernel_.queue_pointer, 0);
  pointer(kernel_.argument_pointer, reinterpret_cast<std::uintptr_t>(arguments_.data()));
  pointer(kernel_.dispatch_id, 0);
  pointer(kernel_.flat_scratch, 0);
  if (kernel_.private_size) wave.scalar[at++] = kernel_.private_bytes;
  const std::size_t preload = std::size_t{4} * kernel_.preload_offset;
  if (kernel_.preloaded_words != 0) {
    const std::size_t bytes =
        std::min(std::size_t{4} * kernel_.preloaded_words, arguments_.size() - preload);
    std::memcpy(&wave.scalar[at], arguments_.data() + preload, bytes);
    at += kernel_.preloaded_words;
  }
  if (kernel_.group_x) wave.scalar[at++] = block.x;
  if (kernel_.group_y) wave.scalar[at++] = block.y;
  if (kernel_.group_z) wave.scalar[at++] = block.z;
  // A kernel with preloaded arguments has a first part that loads them for older loaders.
  constexpr std::uint64_t kPreloadBytes = 256;
  wave.pc = program_.index_of(object_.address_of(kernel_) +
                              (kernel_.preloaded_words != 0 ? kPreloadBytes : 0));
}

/// v0 holds a thread's x, y and z in 10 bits each.
void Execution::set_item_ids(Wave& wave, unsigned number) const {
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    const std::uint32_t thread = number * kLanes + lane;
    const std::uint32_t x = thread % grid_.threads_x;
    const std::uint32_t y = thread / grid_.threads_x % grid_.threads_y;
    const std::uint32_t z = thread / grid_.threads_x / grid_.threads_y;
    wave.row(0)[lane] = x | y << 10 | z << 20;
  }
}

std::uint64_t Execution::turn_length() {
  switch (manner_.schedule) {
    case Schedule::kRunAhead:
      return kRunAheadTurn;
    case Schedule::kRoundRobin:
      return kShortTurn;
    default:
      return 1 + random_() % kRandomTurn;
  }
}

bool Execution::run(std::uint64_t instructions) {
  const int rounding = std::fegetround();
  const std::uint64_t end = executed_ + instructions;
  try {
    while (executed_ < end) {
      start_blocks();
      if (blocks_.empty()) break;
      const bool random = manner_.schedule == Schedule::kRandom;
      Block& block = *blocks_[(random ? random_() : turn_++) % blocks_.size()];
      const std::size_t first = random ? random_() % block.waves.size() : 0;
      for (std::size_t n = 0; n < block.waves.size(); ++n) {
        Wave& wave = *block.waves[(first + n) % block.waves.size()];
        if (wave.state != WaveState::kRunning) continue;
        executed_ += turn(block, wave, turn_length());
        if (random) break;
      }
      if (block.running == 0)
        std::erase_if(blocks_, [&](std::unique_ptr<Block>& candidate) {
          if (candidate->running != 0 || candidate->waiting != 0) return false;
          for (auto& registers : candidate->registers)
            pools_.registers.push_back(std::move(registers));
          return true;
        });
    }
  } catch (...) {
    std::fesetround(rounding);
    throw;
  }
  std::fesetround(rounding);
  return blocks_.empty() && next_block_ == block_count_;
}

/// Lets a wave run until it waits or its turn is over; returns how many instructions it executed.
std::uint64_t Execution::turn(Block& block, Wave& wave, std::uint64_t limit) {
  apply_mode(wave);
  wave.stop = false;
  const Inst* const code = program_.code.data();
  std::uint64_t left = limit;
  std::uint32_t at = wave.pc;
  try {
    while (left != 0 && !wave.stop) {
      at = wave.pc++;
      const Inst& inst = code[at];
      inst.run(wave, inst);
      --left;
    }
  } catch (const Fault& fault) {
    wave.pc = at;
    const bool by_lane = fault.by_lane && wave.lane < kLanes;
    throw Fault{fmt::format("{}: {}{}", place_of(block, wave),
                            by_lane ? fmt::format("lane {}: ", wave.lane) : "", fault.message)};
  } catch (const Unsupported& unsupported) {
    wave.pc = at;
    throw Unsupported{fmt::format("kernel '{}' cannot be executed: {}: {}", kernel_.name,
                                  place_of(block, wave), unsupported.message)};
  }
  after_turn(block, wave);
  return limit - left;
}

/// Barriers open when every wave that lives has come.
void Execution::after_turn(Block& block, Wave& wave) {
  if (wave.state == WaveState::kRunning) return;
  --block.running;
  if (wave.state == WaveState::kAtBarrier) ++block.waiting;
  if (block.running != 0 || block.waiting == 0) return;
  for (auto& other : block.waves)
    if (other->state == WaveState::kAtBarrier) other->state = WaveState::kRunning;
  block.running = block.waiting;
  block.waiting = 0;
}

Observations Execution::observed() const {
  Observations observed = observed_;
  observed.instructions = executed_;
  return observed;
}

std::string Execution::place_of(const Block& block, const Wave& wave) const {
  return fmt::format("block [{}, {}, {}], wave {} (exec {:#x}), at {}", block.x, block.y, block.z,
                     wave.number, wave.exec(), program_.describe(wave.pc));
}

std::string Execution::whereabouts() const {
  std::string text;
  constexpr std::size_t kMost = 4;
  std::size_t waves = 0;
  for (const auto& block : blocks_)
    for (const auto& wave : block->waves) {
      if (wave->state == WaveState::kEnded) continue;
      if (waves++ < kMost)
        text += fmt::format("{}{}{}", text.empty() ? "" : "; ", place_of(*block, *wave),
                            wave->state == WaveState::kAtBarrier ? ", waiting at a barrier" : "");
    }
  if (waves > kMost) text += fmt::format("; and {} waves more", waves - kMost);
  return text;
}

std::string Program::describe(std::uint32_t index) const {
  if (index >= text.size()) return fmt::format("offset {:#x}, past the end", offsets[index]);
  return fmt::format("offset {:#x}, '{}'", offsets[index], text[index]);
}

namespace {

/// What the runtime fills in; 0 for what it would leave empty.
std::uint64_t hidden_value(std::string_view kind, const Grid& grid) {
  if (kind == "hidden_block_count_x") return grid.blocks_x;
  if (kind == "hidden_block_count_y") return grid.blocks_y;
  if (kind == "hidden_block_count_z") return grid.blocks_z;
  if (kind == "hidden_group_size_x") return grid.threads_x;
  if (kind == "hidden_group_size_y") return grid.threads_y;
  if (kind == "hidden_group_size_z") return grid.threads_z;
  if (kind == "hidden_grid_dims") {
    if (grid.blocks_z * grid.threads_z > 1) return 3;
    return grid.blocks_y * grid.threads_y > 1 ? 2 : 1;
  }
  if (kind == "hidden_private_base") return kPrivateAperture >> 32;
  if (kind == "hidden_shared_base") return kSharedAperture >> 32;
  if (kind == "hidden_dynamic_lds_size") return grid.shared_bytes;
  return 0;
}

}  // namespace

std::vector<std::byte> argument_segment(const Kernel& kernel, const Grid& grid,
                                        std::span<const std::span<const std::byte>> values) {
  // Scalar loads read whole groups of words, beyond the last argument, too.
  constexpr std::size_t kSlack = 64;
  std::vector<std::byte> segment(kernel.argument_bytes + kSlack);
  std::size_t next = 0;
  for (const KernelParameter& parameter : kernel.parameters) {
    if (parameter.offset + std::size_t{parameter.size} > kernel.argument_bytes)
      throw Unsupported{
          fmt::format("kernel '{}': an argument lies outside its segment", kernel.name)};
    std::byte* const at = segment.data() + parameter.offset;
    if (parameter.is_hidden()) {
      const std::uint64_t value = hidden_value(parameter.kind, grid);
      std::memcpy(at, &value, std::min<std::size_t>(parameter.size, sizeof value));
      continue;
    }
    if (next == values.size() || values[next].size() != parameter.size)
      throw Unsupported{fmt::format(
          "kernel '{}': argument {} has {} bytes in the code object, {} are given", kernel.name,
          next, parameter.size, next == values.size() ? 0 : values[next].size())};
    std::memcpy(at, values[next].data(), parameter.size);
    ++next;
  }
  if (next != values.size())
    throw Unsupported{fmt::format("kernel '{}' has {} arguments in the code object, {} are given",
                                  kernel.name, next, values.size())};
  return segment;
}

std::byte* Memory::find(std::uint64_t address, std::size_t bytes, bool write) {
  const auto after = std::upper_bound(
      extents_.begin(), extents_.end(), address,
      [](std::uint64_t wanted, const Extent& extent) { return wanted < extent.begin; });
  if (after != extents_.begin()) {
    const Extent& extent = *(after - 1);
    if (address + bytes <= extent.end && address + bytes >= address &&
        (write ? extent.writable : extent.readable)) {
      last_ = extent;
      return reinterpret_cast<std::byte*>(address);
    }
  }
  throw Fault{fmt::format("{} of {} bytes at {:#x}, {}", write ? "a write" : "a read", bytes,
                          address, place_of(address)),
              true};
}

/// An address in terms of the buffer before it, or of the one behind it.
std::string Memory::place_of(std::uint64_t address) const {
  constexpr std::uint64_t kNear = std::uint64_t{1} << 20;
  const Extent* before = nullptr;
  for (const Extent& extent : extents_) {
    if (extent.buffer.empty() || !extent.readable) continue;
    if (extent.begin <= address) before = &extent;
    if (extent.begin > address && before == nullptr && extent.begin - address < kNear)
      return fmt::format("{} bytes before buffer '{}'", extent.begin - address, extent.buffer);
  }
  if (before == nullptr || address - before->begin > before->end - before->begin + kNear)
    return "which is near no buffer";
  return fmt::format("byte {} of buffer '{}', whose run of bytes has {}", address - before->begin,
                     before->buffer, before->end - before->begin);
}

void Shared::overrun(std::uint64_t address, std::size_t size, bool write) const {
  throw Fault{fmt::format("{} of {} bytes of shared memory at byte {}, of which there are {}",
                          write ? "a write" : "a read", size, address, bytes.size()),
              true};
}

std::byte* Wave::scratch_at(unsigned of_lane, std::uint64_t address, std::size_t bytes) {
  if (address + bytes > private_bytes)
    throw Fault{fmt::format("an access to {} bytes of scratch at byte {}, of which a lane has {}",
                            bytes, address, private_bytes),
                true};
  return scratch.data() + of_lane * private_bytes + address;
}

}  // namespace monoref::device::gfx
