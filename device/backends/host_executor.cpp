// The scheduler of kernel threads.
//
// An OS thread (Worker) runs blocks. A block's threads run on fibres, one after the other on the
// same fibre as long as none of them has to wait; a thread that waits keeps its fibre, and the next
// thread goes on another one. Whoever arrives last at a barrier or in a cross-lane operation puts
// the others into the ready queue and goes on. Control passes from fibre to fibre directly; the
// Worker's own stack sees only the beginning and the end of a launch.
//
// That nobody is ready and nobody is left to start while threads still live is a divergence: a
// verdict, never a hang.

#include "device/backends/host_executor.hpp"

#include <fmt/format.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <csignal>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "device/backends/fiber.hpp"
#include "device/backends/interrupt.hpp"
#include "device/backends/kernel_table.hpp"
#include "device/backends/shared_arena.hpp"

constinit thread_local monoref::simt::host::Index3 threadIdx;
constinit thread_local monoref::simt::host::Index3 blockIdx;
constinit thread_local monoref::simt::host::Index3 blockDim;
constinit thread_local monoref::simt::host::Index3 gridDim;
constinit thread_local std::uint32_t monoref::simt::host::linear_thread_index = 0;
constinit thread_local void* monoref::simt::host::dynamic_shared_memory = nullptr;
constinit std::uint64_t monoref::simt::host::active_fault = 0;
#if defined(__x86_64__)
const bool monoref::simt::host::has_fma_instruction = __builtin_cpu_supports("fma") != 0;
#else
const bool monoref::simt::host::has_fma_instruction = true;
#endif

namespace monoref::device {

namespace context = boost::context::detail;
using simt::host::Index3;
using simt::host::Site;

/// The lanes of a wave that meet in cross-lane operations. Operation n keeps its values in slot n
/// mod 2: a lane enters operation n+2 only after all lanes have entered n+1, hence have read those
/// of n.
struct Wave {
  std::uint32_t live = 0;
  std::uint32_t arrived = 0;
  std::uint32_t lanes = 0;  ///< that the wave began with
  std::uint32_t phase = 0;
  Wait kind = Wait::kNothing;
  Site site;
  FiberQueue waiting;
  std::uint64_t present[2] = {};
  std::uint64_t votes[2] = {};
  std::uint64_t values[2][64];
};

/// A block whose threads are running or about to.
struct Block {
  Index3 index;
  Index3 next_thread;  ///< the thread to start next
  std::uint32_t started = 0;
  std::uint32_t live = 0;
  std::uint32_t arrived = 0;
  Site barrier_site;
  FiberQueue waiting;
  std::vector<Wave> waves;
  SharedArena shared;
};

namespace {

/// What ended a launch early. Plain data: it is filled in on fibres and in signal handlers.
struct Failure {
  enum Kind {
    kNone,
    kStopped,  ///< another worker has failed
    kFault,
    kTimeLimit,
    kDivergence,
    kBadLane,
    kAbsentLane,
    kMisaligned,
    kSharedLimit,
    kSharedOverrun,
    kStackOverrun,
    kNoMemory,
  };
  Kind kind = kNone;
  const Fiber* fiber = nullptr;  ///< the thread that ran
  const Block* block = nullptr;
  Interruption interruption{};
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
  int lane = 0;
  const char* name = nullptr;
};

/// What the workers of one launch share.
struct Launch {
  explicit Launch(const HostLaunch& launch)
      : request(launch),
        blocks(std::uint64_t{launch.grid.blocks_x} * launch.grid.blocks_y * launch.grid.blocks_z),
        threads(launch.grid.threads_x * launch.grid.threads_y * launch.grid.threads_z) {}

  const HostLaunch& request;
  const std::uint64_t blocks;
  const std::uint32_t threads;  ///< of a block
  std::atomic<std::uint64_t> next_block{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;  ///< of the report
  RunReport report;
};

bool same_place(const Site& a, const Site& b) {
  return a.line() == b.line() && a.column() == b.column() &&
         (a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0);
}

std::string text_of(const Index3& index) {
  return fmt::format("({},{},{})", index.x, index.y, index.z);
}

std::string text_of(const Site& site) {
  const std::string_view path = site.file_name();
  const auto slash = path.rfind('/');
  return fmt::format("{}:{}:{}", slash == path.npos ? path : path.substr(slash + 1), site.line(),
                     site.column());
}

std::string text_of(Wait wait) {
  switch (wait) {
    case Wait::kBarrier:
      return "the barrier";
    case Wait::kShuffle:
      return "the shuffle";
    case Wait::kBallot:
      return "the ballot, any or all";
    case Wait::kNothing:
      break;
  }
  return "nothing";
}

class Worker {
 public:
  /// The one of this OS thread.
  static Worker& mine();

  /// Runs this worker's share of the launch: of a cooperative one the blocks rank, rank + ranks,
  /// ... all at once, of any other one as many as it can get, one by one.
  void run(Launch& launch, int rank, int ranks);

  void barrier(const Site& site);
  std::uint64_t shuffle(std::uint64_t value, int source, const Site& site);
  std::uint64_t ballot(bool predicate, const Site& site);
  void relax();
  void* shared_array(const void* key, const char* name, std::size_t bytes);
  [[noreturn]] void misaligned(const void* address, std::size_t bytes);

 private:
  Worker() : guard_(interrupted) {}

  static void fiber_main(context::transfer_t from);
  [[noreturn]] static void interrupted(const Interruption& why);

  [[noreturn]] void loop(Fiber& me);
  [[gnu::always_inline]] void switch_to(Fiber& me, Fiber& to);
  [[gnu::always_inline]] void resumed(Fiber& me, context::transfer_t from);
  void rest(Fiber& me);
  [[noreturn, gnu::cold, gnu::noinline]] void fail(Failure failure);
  [[noreturn, gnu::cold, gnu::noinline]] void fail(Failure::Kind kind, Fiber& me);

  void show(const Fiber& me);
  [[gnu::always_inline]] void suspend(Fiber& me, Wait wait, const Site& site);
  [[noreturn, gnu::cold, gnu::noinline]] void diverge(Fiber& me, Wait wait, const Site& site);
  Fiber* fresh_fiber();
  bool begin_thread(Fiber& me);
  void end_thread(Fiber& me);
  Block* block_to_start();
  bool something_to_start();
  void prepare(Block& block, std::uint64_t number);
  void release(Block& block);
  void release(Wave& wave);
  std::uint32_t enter(Fiber& me, Wave& wave, Wait kind, const Site& site);
  void finish_entry(Fiber& me, Wave& wave, Wait kind, const Site& site);

  void make_resident(int rank, int ranks);
  Block& block_object(std::size_t index);
  void enter_fibers();
  void report(const Failure& failure);
  std::string describe(const Failure& failure) const;
  std::string describe_fault(const Failure& failure) const;
  std::string describe_waits(const Block& block) const;

  InterruptGuard guard_;
  FiberPool fibers_;
  std::vector<std::unique_ptr<Block>> blocks_;

  Launch* launch_ = nullptr;
  std::size_t resident_ = 0;  ///< blocks of blocks_ that take part in this launch
  std::size_t starting_ = 0;  ///< the one of them whose threads are being started
  std::uint64_t live_ = 0;    ///< threads of all resident blocks
  int wave_bits_ = 0;         ///< log2 of the lanes of a wave
  FiberQueue ready_;
  Fiber* self_ = nullptr;         ///< the fibre that runs
  Fiber* entering_ = nullptr;     ///< the fibre that control passes to
  const Block* shown_ = nullptr;  ///< the block that blockIdx speaks of
  context::fcontext_t scheduler_ = nullptr;
  Failure failure_;
  bool start_first_ = false;  ///< the next fibre begins a thread before it looks at the ready ones

  void* scheduler_fake_stack_ = nullptr;
  const void* scheduler_stack_ = nullptr;
  std::size_t scheduler_stack_bytes_ = 0;
};

constinit thread_local Worker* current_worker [[gnu::tls_model("initial-exec")]] = nullptr;

Worker& Worker::mine() {
  thread_local const std::unique_ptr<Worker> owned(new Worker);
  current_worker = owned.get();
  return *owned;
}

// ---- passing control ---------------------------------------------------------------------------

void announce_switch([[maybe_unused]] void** save, [[maybe_unused]] const void* stack,
                     [[maybe_unused]] std::size_t bytes) {
#if MONOREF_ADDRESS_SANITIZER
  __sanitizer_start_switch_fiber(save, stack, bytes);
#endif
}

void complete_switch([[maybe_unused]] void* saved, [[maybe_unused]] const void** old_stack,
                     [[maybe_unused]] std::size_t* old_bytes) {
#if MONOREF_ADDRESS_SANITIZER
  __sanitizer_finish_switch_fiber(saved, old_stack, old_bytes);
#endif
}

/// Where to continue a fibre, or begin it.
context::fcontext_t context_of(Fiber& fiber, void (*main)(context::transfer_t)) {
  if (fiber.context == nullptr)
    fiber.context =
        context::make_fcontext(fiber.top, static_cast<std::size_t>(fiber.top - fiber.stack), main);
  return fiber.context;
}

inline void Worker::switch_to(Fiber& me, Fiber& to) {
  if (me.overrun()) fail(Failure::kStackOverrun, me);
  guard_.set_inside(false);  // half a switch cannot be abandoned
  entering_ = &to;
  announce_switch(&me.fake_stack, to.stack, FiberPool::kStackBytes);
  resumed(me, context::jump_fcontext(context_of(to, fiber_main), &me));
}

/// The first thing a fibre does when control comes to it: notes where it came from.
inline void Worker::resumed(Fiber& me, context::transfer_t from) {
  if (from.data != nullptr) {
    complete_switch(me.fake_stack, nullptr, nullptr);
    static_cast<Fiber*>(from.data)->context = from.fctx;
  } else {
    complete_switch(me.fake_stack, &scheduler_stack_, &scheduler_stack_bytes_);
    scheduler_ = from.fctx;
  }
  self_ = &me;
  guard_.set_inside(true);
  if (me.block != nullptr) show(me);
}

/// Gives control to the Worker's own stack; returns when a later launch takes the fibre again.
void Worker::rest(Fiber& me) {
  guard_.set_inside(false);
  announce_switch(&me.fake_stack, scheduler_stack_, scheduler_stack_bytes_);
  resumed(me, context::jump_fcontext(scheduler_, &me));
}

/// Gives control to the Worker's own stack for good.
void Worker::fail(Failure failure) {
  guard_.set_inside(false);
  failure_ = failure;
  announce_switch(nullptr, scheduler_stack_, scheduler_stack_bytes_);
  context::jump_fcontext(scheduler_, nullptr);
  __builtin_unreachable();
}

void Worker::fail(Failure::Kind kind, Fiber& me) {
  fail({.kind = kind, .fiber = &me, .block = me.block});
}

/// In a signal handler, on the alternate stack.
void Worker::interrupted(const Interruption& why) {
  Worker& worker = *current_worker;
  Failure failure;
  failure.kind = why.signal == 0 ? Failure::kTimeLimit : Failure::kFault;
  failure.fiber = worker.self_;
  failure.block = worker.self_->block;
  failure.interruption = why;
  worker.fail(failure);
}

void Worker::fiber_main(context::transfer_t from) {
  Worker& worker = *current_worker;
  Fiber& me = *worker.entering_;
  worker.resumed(me, from);
  worker.loop(me);
}

/// Makes the coordinates that the kernel reads those of this fibre's thread.
void Worker::show(const Fiber& me) {
  threadIdx = me.index;
  simt::host::linear_thread_index = me.linear;
  if (shown_ != me.block) {
    shown_ = me.block;
    blockIdx = me.block->index;
    simt::host::dynamic_shared_memory = me.block->shared.dynamic();
  }
}

// ---- the life of threads -----------------------------------------------------------------------

void Worker::loop(Fiber& me) {
  const simt::host::KernelEntry* kernel = nullptr;
  for (;;) {
    Fiber* const next = std::exchange(start_first_, false) ? nullptr : ready_.pop();
    if (next != nullptr) {
      fibers_.give(me);
      switch_to(me, *next);
    } else if (begin_thread(me)) {
      kernel = launch_->request.kernel;
      kernel->run(launch_->request.arguments);
      end_thread(me);
    } else if (live_ == 0) {
      fibers_.give(me);
      rest(me);
    } else {
      fail({.kind = Failure::kDivergence});
    }
  }
}

bool Worker::begin_thread(Fiber& me) {
  Block* const block = block_to_start();
  if (block == nullptr) return false;
  me.block = block;
  me.linear = block->started++;
  me.wave = &block->waves[me.linear >> wave_bits_];
  me.lane = me.linear & ((1U << wave_bits_) - 1);
  me.index = block->next_thread;
  me.wait = Wait::kNothing;
  Index3& next = block->next_thread;
  if (++next.x == launch_->request.grid.threads_x) {
    next.x = 0;
    if (++next.y == launch_->request.grid.threads_y) {
      next.y = 0;
      ++next.z;
    }
  }
  show(me);
  return true;
}

/// Those who wait for this thread need not any longer.
void Worker::end_thread(Fiber& me) {
  Block& block = *me.block;
  if (me.overrun()) fail(Failure::kStackOverrun, me);
  me.block = nullptr;
  --live_;
  --block.live;
  --me.wave->live;
  if (me.wave->arrived != 0 && me.wave->arrived == me.wave->live) release(*me.wave);
  if (block.arrived != 0 && block.arrived == block.live) release(block);
  if (block.live != 0) return;
  if (const char* const name = block.shared.overrun(); name != nullptr)
    fail({.kind = Failure::kSharedOverrun, .block = &block, .name = name});
}

/// The block to start the next thread of; null if all threads of this worker have been started.
Block* Worker::block_to_start() {
  while (starting_ < resident_) {
    Block& block = *blocks_[starting_];
    if (block.started != launch_->threads) return &block;
    ++starting_;
  }
  const Grid& grid = launch_->request.grid;
  if (grid.cooperative || live_ != 0) return nullptr;
  if (guard_.expired()) fail({.kind = Failure::kTimeLimit});
  if (launch_->stop.load(std::memory_order_relaxed)) fail({.kind = Failure::kStopped});
  const std::uint64_t number = launch_->next_block.fetch_add(1, std::memory_order_relaxed);
  if (number >= launch_->blocks) return nullptr;
  prepare(*blocks_[0], number);
  starting_ = 0;
  return blocks_[0].get();
}

/// Whether threads wait to be started while others live.
bool Worker::something_to_start() {
  while (starting_ < resident_ && blocks_[starting_]->started == launch_->threads) ++starting_;
  return starting_ < resident_;
}

/// Sets a block object up for a block of the grid. Its waves have been allocated.
void Worker::prepare(Block& block, std::uint64_t number) {
  const Grid& grid = launch_->request.grid;
  block.index.x = static_cast<std::uint32_t>(number % grid.blocks_x);
  block.index.y = static_cast<std::uint32_t>(number / grid.blocks_x % grid.blocks_y);
  block.index.z = static_cast<std::uint32_t>(number / grid.blocks_x / grid.blocks_y);
  block.next_thread = {};
  block.started = 0;
  block.live = launch_->threads;
  block.arrived = 0;
  block.waiting.clear();
  const auto lanes = static_cast<std::uint32_t>(launch_->request.kernel->wave);
  std::uint32_t left = launch_->threads;
  for (Wave& wave : block.waves) {
    wave.lanes = wave.live = std::min(lanes, left);
    wave.arrived = 0;
    wave.waiting.clear();
    left -= wave.live;
  }
  block.shared.begin_block(grid.shared_bytes);
  live_ += block.live;
  shown_ = nullptr;
}

/// A fibre without a thread. The launch ends if there is no memory for one.
Fiber* Worker::fresh_fiber() {
  if (!fibers_.has_idle()) {
    guard_.set_inside(false);  // the allocator must not be left in the middle
    Fiber* const fiber = fibers_.take();
    guard_.set_inside(true);
    if (guard_.expired()) fail({.kind = Failure::kTimeLimit});
    if (fiber == nullptr) fail({.kind = Failure::kNoMemory, .fiber = self_, .block = self_->block});
    return fiber;
  }
  return fibers_.take();
}

/// Lets others run until somebody puts this fibre into the ready queue.
inline void Worker::suspend(Fiber& me, Wait wait, const Site& site) {
  me.wait = wait;
  me.site = site;
  Fiber* next = ready_.pop();
  if (next == nullptr) {
    if (!something_to_start()) fail(Failure::kDivergence, me);
    next = fresh_fiber();
  }
  switch_to(me, *next);
  me.wait = Wait::kNothing;
}

/// Ends the launch with this thread waiting somewhere else than the others.
void Worker::diverge(Fiber& me, Wait wait, const Site& site) {
  me.wait = wait;
  me.site = site;
  fail(Failure::kDivergence, me);
}

// ---- meeting -----------------------------------------------------------------------------------

void Worker::release(Block& block) {
  block.arrived = 0;
  ready_.append(block.waiting);
}

void Worker::release(Wave& wave) {
  wave.arrived = 0;
  ++wave.phase;
  ready_.append(wave.waiting);
}

void Worker::barrier(const Site& site) {
  Fiber& me = *self_;
  Block& block = *me.block;
  if (block.arrived == 0)
    block.barrier_site = site;
  else if (!same_place(block.barrier_site, site))
    diverge(me, Wait::kBarrier, site);
  if (++block.arrived == block.live) return release(block);
  block.waiting.push(me);
  suspend(me, Wait::kBarrier, site);
}

/// Begins the wave's next operation, or joins it if it is the same. Returns its slot.
std::uint32_t Worker::enter(Fiber& me, Wave& wave, Wait kind, const Site& site) {
  const std::uint32_t slot = wave.phase % 2;
  if (wave.arrived == 0) {
    wave.kind = kind;
    wave.site = site;
    wave.present[slot] = 0;
    wave.votes[slot] = 0;
  } else if (wave.kind != kind || !same_place(wave.site, site)) {
    diverge(me, kind, site);
  }
  wave.present[slot] |= std::uint64_t{1} << me.lane;
  return slot;
}

/// Waits until all live lanes have entered.
void Worker::finish_entry(Fiber& me, Wave& wave, Wait kind, const Site& site) {
  if (++wave.arrived == wave.live) return release(wave);
  wave.waiting.push(me);
  suspend(me, kind, site);
}

std::uint64_t Worker::shuffle(std::uint64_t value, int source, const Site& site) {
  Fiber& me = *self_;
  Wave& wave = *me.wave;
  const std::uint32_t slot = enter(me, wave, Wait::kShuffle, site);
  wave.values[slot][me.lane] = value;
  finish_entry(me, wave, Wait::kShuffle, site);
  const int lanes = launch_->request.kernel->wave;
  if (source < 0 || source >= lanes || (wave.present[slot] >> source & 1) == 0) {
    me.site = site;
    fail({.kind = source < 0 || source >= lanes ? Failure::kBadLane : Failure::kAbsentLane,
          .fiber = &me,
          .block = me.block,
          .lane = source});
  }
  return wave.values[slot][source];
}

std::uint64_t Worker::ballot(bool predicate, const Site& site) {
  Fiber& me = *self_;
  Wave& wave = *me.wave;
  const std::uint32_t slot = enter(me, wave, Wait::kBallot, site);
  wave.votes[slot] |= std::uint64_t{predicate} << me.lane;
  finish_entry(me, wave, Wait::kBallot, site);
  return wave.votes[slot];
}

/// Threads that have not begun come first: this one may wait for them. It never waits for another
/// OS thread, and so never gives the processor away.
void Worker::relax() {
  Fiber& me = *self_;
  if (guard_.expired()) fail(Failure::kTimeLimit, me);
  if (launch_->stop.load(std::memory_order_relaxed)) fail({.kind = Failure::kStopped});
  start_first_ = something_to_start();
  Fiber* const next = start_first_ ? fresh_fiber() : ready_.pop();
  if (next == nullptr) return;
  ready_.push(me);
  switch_to(me, *next);
}

void* Worker::shared_array(const void* key, const char* name, std::size_t bytes) {
  Fiber& me = *self_;
  void* const array = me.block->shared.find_or_add(key, name, bytes);
  if (array == nullptr)
    fail({.kind = Failure::kSharedLimit,
          .fiber = &me,
          .block = me.block,
          .bytes = bytes,
          .name = name});
  return array;
}

void Worker::misaligned(const void* address, std::size_t bytes) {
  fail({.kind = Failure::kMisaligned,
        .fiber = self_,
        .block = self_->block,
        .address = reinterpret_cast<std::uintptr_t>(address),
        .bytes = bytes});
}

// ---- the launch, on the worker's own stack -----------------------------------------------------

Block& Worker::block_object(std::size_t index) {
  if (index == blocks_.size()) blocks_.push_back(std::make_unique<Block>());
  Block& block = *blocks_[index];
  const auto lanes = static_cast<std::uint32_t>(launch_->request.kernel->wave);
  block.waves.resize((launch_->threads + lanes - 1) / lanes);
  return block;
}

void Worker::make_resident(int rank, int ranks) {
  if (!launch_->request.grid.cooperative) {
    block_object(0).started = launch_->threads;
    resident_ = 1;
    return;
  }
  for (auto number = static_cast<std::uint64_t>(rank); number < launch_->blocks;
       number += static_cast<std::uint64_t>(ranks))
    prepare(block_object(resident_++), number);
}

void Worker::enter_fibers() {
  Fiber* const first = fibers_.take();
  if (first == nullptr) {
    failure_ = {.kind = Failure::kNoMemory};
    return;
  }
  entering_ = first;
  announce_switch(&scheduler_fake_stack_, first->stack, FiberPool::kStackBytes);
  const context::transfer_t from = context::jump_fcontext(context_of(*first, fiber_main), nullptr);
  complete_switch(scheduler_fake_stack_, nullptr, nullptr);
  if (from.data != nullptr) static_cast<Fiber*>(from.data)->context = from.fctx;
}

void Worker::run(Launch& launch, int rank, int ranks) {
  const Grid& grid = launch.request.grid;
  launch_ = &launch;
  wave_bits_ = std::countr_zero(static_cast<unsigned>(launch.request.kernel->wave));
  blockDim = {grid.threads_x, grid.threads_y, grid.threads_z};
  gridDim = {grid.blocks_x, grid.blocks_y, grid.blocks_z};
  failure_ = {};
  start_first_ = false;
  resident_ = starting_ = 0;
  live_ = 0;
  make_resident(rank, ranks);
  guard_.arm(std::llround(launch.request.time_limit * 1e9));
  enter_fibers();
  guard_.disarm();
  if (failure_.kind != Failure::kNone) {
    launch.stop = true;
    report(failure_);
    ready_.clear();
    fibers_.abandon_all();
  }
  self_ = nullptr;
  launch_ = nullptr;
}

void Worker::report(const Failure& failure) {
  if (failure.kind == Failure::kStopped) return;
  const std::lock_guard lock(launch_->mutex);
  if (launch_->report.status != RunStatus::kOk) return;
  launch_->report.status =
      failure.kind == Failure::kTimeLimit ? RunStatus::kHung : RunStatus::kCrashed;
  launch_->report.message = describe(failure);
}

std::string Worker::describe_fault(const Failure& failure) const {
  const Interruption& why = failure.interruption;
  if (why.signal == SIGFPE) return "integer division by zero or overflow";
  if (why.signal == SIGILL) return "trap or illegal instruction";
  if (failure.fiber != nullptr && FiberPool::in_guard(*failure.fiber, why.address))
    return fmt::format("stack overflow, a thread has {} bytes", FiberPool::kStackBytes);
  const std::string_view verb = why.is_write ? "write" : "read";
  if (failure.block != nullptr)
    if (const char* const where = failure.block->shared.locate(why.address); where != nullptr)
      return fmt::format("{} {}", verb, where);
  return launch_->request.describe_address(why.address, why.is_write);
}

std::string Worker::describe(const Failure& failure) const {
  std::string who = fmt::format("kernel '{}'", launch_->request.kernel->name);
  if (failure.block != nullptr) who += ", block " + text_of(failure.block->index);
  if (failure.fiber != nullptr && failure.block != nullptr && failure.kind != Failure::kDivergence)
    who += ", thread " + text_of(failure.fiber->index);
  switch (failure.kind) {
    case Failure::kFault:
      return who + ": " + describe_fault(failure);
    case Failure::kTimeLimit: {
      const std::string waits = failure.block == nullptr ? "" : describe_waits(*failure.block);
      return fmt::format("{} ran at the time limit of {} s{}{}", who, launch_->request.time_limit,
                         waits.empty() ? "" : "; ", waits);
    }
    case Failure::kDivergence:
      break;
    case Failure::kBadLane:
      return fmt::format("{}: the shuffle at {} reads lane {}, the wave has {}", who,
                         text_of(failure.fiber->site), failure.lane, launch_->request.kernel->wave);
    case Failure::kAbsentLane:
      return fmt::format("{}: the shuffle at {} reads lane {}, which {}", who,
                         text_of(failure.fiber->site), failure.lane,
                         static_cast<std::uint32_t>(failure.lane) < failure.fiber->wave->lanes
                             ? "has exited"
                             : "the block does not have");
    case Failure::kMisaligned:
      return fmt::format("{}: access of {} bytes at {:#x}, which is no multiple of it", who,
                         failure.bytes, failure.address);
    case Failure::kSharedLimit:
      return fmt::format("{}: shared array '{}' of {} bytes does not fit, a block has {}", who,
                         failure.name, failure.bytes, kSharedLimit);
    case Failure::kSharedOverrun:
      return fmt::format("{}: write past the end of shared array '{}'", who, failure.name);
    case Failure::kStackOverrun:
      return fmt::format("{}: stack overflow, a thread has {} bytes", who, FiberPool::kStackBytes);
    case Failure::kNoMemory:
      return who + ": no memory for the stacks of its threads";
    case Failure::kNone:
    case Failure::kStopped:
      break;
  }
  // A divergence: every resident block with threads that wait has its part in it.
  std::string text = who + ": threads diverge";
  for (std::size_t i = 0; i < resident_; ++i)
    if (const std::string waits = describe_waits(*blocks_[i]); !waits.empty())
      return fmt::format("{}; in block {}, {}", text, text_of(blocks_[i]->index), waits);
  return text;
}

/// How many threads of a block wait where, and who is the first of them.
std::string Worker::describe_waits(const Block& block) const {
  struct Group {
    std::uint32_t count = 0;
    const Fiber* first = nullptr;
  };
  std::map<std::string, Group> groups;
  fibers_.for_each([&](const Fiber& fiber) {
    if (fiber.block != &block || fiber.wait == Wait::kNothing) return;
    Group& group = groups[text_of(fiber.wait) + " at " + text_of(fiber.site)];
    ++group.count;
    if (group.first == nullptr || fiber.linear < group.first->linear) group.first = &fiber;
  });
  std::string text;
  for (const auto& [place, group] : groups)
    text += fmt::format("{}{} of {} live threads {} for {} (first: thread {})",
                        text.empty() ? "" : ", ", group.count, block.live,
                        group.count == 1 ? "waits" : "wait", place, text_of(group.first->index));
  return text;
}

/// Whether waking the other OS threads costs less than they save. Blocks that wait for each other
/// stay with one: with two, each turn would wait until the machine lets the other one run.
bool worth_waking(const Launch& launch) {
  constexpr std::uint64_t kThreads = 8192;
  return !launch.request.grid.cooperative && launch.blocks > 1 &&
         launch.blocks * launch.threads >= kThreads;
}

}  // namespace

RunReport run_on_host(const HostLaunch& request) {
  Launch launch(request);
  std::exception_ptr error;  // no exception may leave an OpenMP region
  const auto run_share = [&launch, &error](int rank, int ranks) {
    try {
      Worker::mine().run(launch, rank, ranks);
    } catch (...) {
      launch.stop = true;
      const std::lock_guard lock(launch.mutex);
      error = std::current_exception();
    }
  };
  if (worth_waking(launch)) {
    std::atomic<int> workers{0};  // as many as OpenMP gives
#pragma omp parallel
    {
      const int rank = workers.fetch_add(1);
#pragma omp barrier
      run_share(rank, workers);
    }
  } else {
    run_share(0, 1);
  }
  if (error) std::rethrow_exception(error);
  return launch.report;
}

}  // namespace monoref::device

namespace monoref::simt::host {

void barrier(const Site& site) {
  device::current_worker->barrier(site);
}

std::uint64_t shuffle_bits(std::uint64_t value, int source, const Site& site) {
  return device::current_worker->shuffle(value, source, site);
}

std::uint64_t ballot_bits(bool predicate, const Site& site) {
  return device::current_worker->ballot(predicate, site);
}

void relax() {
  device::current_worker->relax();
}

void* shared_array(const void* key, const char* name, std::size_t bytes) {
  return device::current_worker->shared_array(key, name, bytes);
}

void misaligned(const void* address, std::size_t bytes) {
  device::current_worker->misaligned(address, bytes);
}

}  // namespace monoref::simt::host

namespace monoref::device {

void set_active_fault(std::string_view name) {
  simt::host::active_fault = name.empty() ? 0 : simt::fault_hash(name);
}

bool is_active_fault(std::string_view name) {
  return simt::host::active_fault == simt::fault_hash(name);
}

}  // namespace monoref::device
