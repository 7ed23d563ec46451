// A stage as data: what goes in, what comes out, who computes it, and how it is exercised.
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "device/backend.hpp"
#include "device/fault.hpp"
#include "device/launch/launch.hpp"
#include "fuzz/params.hpp"
#include "golden/case.hpp"
#include "golden/recording.hpp"

namespace monoref {

/// Where the elements of an input may lie. Without holes is one run of storage from element 0 to
/// the last element, no shorter and no longer.
enum class InputStorage : std::uint8_t {
  kDense,    ///< row-major, without gaps or holes
  kRows,     ///< dense but for axis 0, whose parts lie any distance apart that keeps them apart; no
             ///< holes
  kNested,   ///< stride 1 in the last axis, in the others as kStrided; no holes
  kStrided,  ///< any strides that keep elements apart, in any order of the axes; no holes
  kSparse,   ///< dims and strides of a dense tensor; runs of storage that nobody reads may be
             ///< missing
  kCache,    ///< strides as kNested; runs of storage that nobody reads may be missing, and the last
             ///< row may have padding behind it
};

/// One input of a stage, as its kernels can take it.
///
/// A stage states all that it reads of a case in four lists, and the registry refuses everything
/// else before any function of the stage sees the case: `inputs`, `sizes` (what the axes that the
/// inputs name may be), `scalars`, and for stages of several forms `variant`. For example:
///
///   stage.inputs = {{"x8", {DType::kFloat8E4M3FN}, {"rows", "hidden"}, InputStorage::kRows},
///                   {"x_scale", {DType::kFloat32}, {"rows"}}};
///   stage.sizes = {{"hidden", 8, 6144, 8}};
///   stage.scalars = {ScalarSpec::positive("eps"), ScalarSpec::row_gap("out_row_gap")};
///
/// Checks of values, and of sizes against each other beyond "the same", remain the stage's.
struct InputSpec {
  /// Where it has a '#', that stands for any number: a chain has the input once a layer or rank.
  std::string name;
  std::vector<DType> types;
  /// A name for each axis. Axes of one name have one extent, in all inputs of the case, which a
  /// scalar of that name says too. A '#' is the first number in the input's name.
  std::vector<std::string> axes;
  InputStorage storage = InputStorage::kDense;
  bool optional = false;
  std::string_view variant;  ///< the only one that has it; empty: all have

  InputSpec of(std::string_view the_variant) &&;
  std::size_t rank() const { return axes.size(); }
};

/// What the extent of an axis may be.
struct SizeSpec {
  std::string axis;
  std::int64_t low = 0;
  std::int64_t high = std::numeric_limits<std::int32_t>::max();
  std::int64_t multiple = 1;
};

/// A scalar of a stage and its range. Every stage takes a word `defect` beside those it lists.
struct ScalarSpec {
  enum class Kind : std::uint8_t { kInteger, kReal, kWord };

  std::string name;  ///< '#' as in InputSpec
  Kind kind = Kind::kInteger;
  std::int64_t low = 0, high = 0, multiple = 1;
  double least = 0, most = 0;  ///< a NaN is in no range
  std::vector<std::string_view> words;
  bool optional = false;
  std::string_view variant;

  static ScalarSpec integer(std::string name, std::int64_t low, std::int64_t high,
                            std::int64_t multiple = 1);
  static ScalarSpec flag(std::string name) { return integer(std::move(name), 0, 1); }
  static ScalarSpec real(std::string name, double least, double most);
  /// A real that binary32 holds as a finite number; and one that it holds above 0 as well.
  static ScalarSpec finite(std::string name);
  static ScalarSpec positive(std::string name);
  static ScalarSpec word(std::string name, std::vector<std::string_view> words);
  /// Elements between rows of an output; none if the case does not say.
  static ScalarSpec row_gap(std::string name);
  ScalarSpec or_none() &&;
  ScalarSpec of(std::string_view the_variant) &&;
};

/// One output of a stage for a given case.
struct OutputSpec {
  std::string name;
  DType type;
  Layout layout;
  std::vector<std::string_view> axes;  ///< names of the dims in the stage's own terms
  /// Name of the input this output starts as (caches that are written in place); empty: poison.
  std::string starts_as;
  /// Computed by host code in the original: the in-tree kernels have no part in it for this case.
  bool on_host = false;
  /// In a chain: the link that writes it, and that link's stage.
  std::string made_by;
};

/// Hands a stage's buffers to its kernels. Addresses are the backend's.
class Launcher {
 public:
  /// `shape`: of every launch.
  Launcher(device::Backend& backend, const std::vector<std::pair<std::string, DType>>& buffers,
           const device::launch::Shape& shape = {});

  /// One that launches nothing: it notes in `on16`, which has a place for each buffer, those that
  /// must begin on a multiple of 16, and has no addresses to read or write at.
  static Launcher asking(device::Backend& backend,
                         const std::vector<std::pair<std::string, DType>>& buffers,
                         std::vector<bool>& on16);

  /// A buffer's name in a stage, and what it is in the chain that the stage is part of.
  struct Renamed {
    std::string name;
    std::string of;
    std::int64_t offset = 0;  ///< elements
  };
  /// The same backend with these names alone. Refuses a buffer that there is not.
  Launcher renamed(const std::vector<Renamed>& names) const;

  /// The base of a buffer as a kernel parameter; refuses a name or an element size it does not
  /// have.
  template <class T>
  T* address(std::string_view name) const {
    return static_cast<T*>(raw_address(name, sizeof(T)));
  }
  /// The same, or null where the case has no such buffer.
  template <class T>
  T* address_or_null(std::string_view name) const {
    return has(name) ? address<T>(name) : nullptr;
  }
  bool has(std::string_view name) const { return find(name) != nullptr; }

  int wave() const { return backend_.wave(); }

  /// The same buffers as one device has them; what is launched runs there.
  Launcher on_device(int device) const;
  /// The same of the device that has a rank.
  Launcher on_rank(std::int64_t rank, std::int64_t ranks) const;
  /// Each device alone, or only the one that this launcher is for.
  std::vector<Launcher> each_device() const;

  /// Neighbouring ranks that share a device.
  struct RankGroup {
    std::int64_t first = 0, count = 0;
  };
  /// The devices' ranks, of those from 0 to `present`, out of `ranks`.
  std::vector<RankGroup> rank_groups(std::int64_t ranks, std::int64_t present) const;

  /// Calls `enqueue`; what it runs on different devices begins together.
  void together(const std::function<void()>& enqueue) const;

  /// Enqueues a kernel by its arguments' names: one of the structs in device/launch/.
  template <class Args>
  void enqueue(const Args& args) const {
    if (on16_ == nullptr)
      device::launch::enqueue(args, backend_, shape_, device_.value_or(0));
    else
      args.pass([this](const auto&... values) { (note(values), ...); });
  }

 private:
  struct Buffer {
    std::string name;
    DType type;
    std::size_t index;        ///< in placement order
    std::int64_t offset = 0;  ///< elements
  };

  /// No address of a buffer that is only asked about reaches that of the next one.
  static constexpr int kAskedBits = 48;

  template <class T>
  void note(const T&) const {}
  template <class T>
  void note(const device::launch::On16<T>& value) const {
    const auto at = reinterpret_cast<std::uintptr_t>(value.address);
    if (at != 0) on16_->at((at >> kAskedBits) - 1) = true;
  }

  const Buffer* find(std::string_view name) const;
  void* raw_address(std::string_view name, std::size_t element_size) const;

  device::Backend& backend_;
  std::vector<Buffer> buffers_;
  std::optional<int> device_;  ///< empty: a stage of ranks picks devices itself
  device::launch::Shape shape_;
  std::vector<bool>* on16_ = nullptr;
};

/// A choice of a contract, as kernels take it.
template <class Choice>
constexpr std::int32_t option(Choice choice) {
  return static_cast<std::int32_t>(choice);
}

struct ChainLink;
/// Whether a fault of the host code between the kernels is planted. Never so in a reference.
using Planted = std::function<bool(std::string_view)>;

/// Elements of a buffer that a rank uses: an input's, or those of "out." and an output's name.
struct RankShare {
  static constexpr std::int64_t kAllRanks = -1;
  static constexpr std::int64_t kWhole = -1;

  std::string buffer;
  std::int64_t rank = kAllRanks;
  bool is_written = false;
  std::int64_t offset = 0, count = kWhole;
};

/// A stage's kernels, or the host code of a chain, with that fault switched on.
using Mutant = device::Fault;

using Outputs = std::vector<NamedTensor>;
const Tensor& output(const Outputs& outputs, std::string_view name);

/// Computes a case's outputs, by the reference or on a backend; properties ask it about variants.
using Evaluate = std::function<Outputs(const Case&)>;

/// A statement about outputs beyond "equal to the reference". It is asked of the reference and of
/// the backend alike, so that a mistake both share has one more witness against it.
struct Property {
  std::string_view name;
  std::string_view statement;
  /// Nothing if it holds (or does not apply to the case), else what was found.
  std::function<std::optional<std::string>(const Case&, const Outputs&, const Evaluate&)> check;
};

struct Stage {
  std::string_view name;
  std::string_view summary;
  std::string_view source;  ///< seed or specification section
  std::uint32_t generator_version = 1;
  std::vector<Dimension> dimensions;
  /// Contracts that a campaign takes in turn when none is named; the default first.
  std::vector<std::string_view> contracts = {"mono"};
  /// Refuses a contract that the stage has no form for, and says why. Empty: it takes every one.
  /// The registry makes `outputs` ask it first; a chain has those of its links.
  std::function<void(const Contract&)> check_contract;

  /// All that a case may have; see InputSpec. The registry makes `outputs` refuse others, before
  /// the stage looks at any. No inputs listed: the stage sees to all of that itself.
  std::vector<InputSpec> inputs;
  std::vector<SizeSpec> sizes;
  std::vector<ScalarSpec> scalars;
  /// The scalar, a word, that says which of several forms a case has. Empty: there is one form.
  std::string_view variant;

  /// Deterministic: the same arguments give the same bits. Fills everything but the line.
  std::function<Case(const Params&, const Contract&, std::uint64_t seed)> build;
  /// Validates the case (Refusal) and lays out its outputs.
  std::function<std::vector<OutputSpec>(const Case&)> outputs;
  /// Computes into tensors laid out by `outputs`.
  std::function<void(const Case&, Outputs&)> reference;
  /// Enqueues the kernels, which write every output that is not `on_host`. Empty: the stage has no
  /// kernel, and stands on its stored outputs and its properties.
  std::function<void(const Case&, const Launcher&)> launch;
  /// Ranks of a case. Empty: the stage knows none, and every device of a backend does all of it.
  std::function<std::int64_t(const Case&)> ranks;
  /// With ranks: who uses what, in the order of use. What nobody names, all devices have.
  std::function<std::vector<RankShare>(const Case&)> shares;
  /// Whether the kernels implement a contract; empty: every one that the stage accepts.
  std::function<bool(const Contract&)> has_kernels;

  /// `stage` attributes of recordings that this stage can adopt, and how.
  std::vector<std::string_view> recordings;
  std::function<Case(const Recording&, const RecordedCase&)> adopt;

  /// For a chain of other stages: its links for a case, in order. `as_chain` (fuzz/chain.hpp) makes
  /// outputs, reference and launch of it.
  std::function<std::vector<ChainLink>(const Case&, const Planted&)> chain;

  std::vector<Property> properties;
  /// The faults planted in its kernels; the registry finds them.
  std::vector<Mutant> mutants;

  /// Golden cases of each contract, and the most bytes that the inputs of one may have.
  std::uint64_t golden_cases = 16;
  std::int64_t golden_bytes = std::numeric_limits<std::int64_t>::max();
};

/// Why a stage, or a link of its simplest case, has no form for a contract; nothing if it has one.
std::optional<std::string> contract_refusal(const Stage& stage, const Contract& contract);
/// The same stage, with `outputs` refusing what `check_contract` does.
Stage with_checked_contract(Stage stage);

/// Enqueues a stage's kernels where they belong: on the devices of its ranks, or on each device.
void launch_stage(const Stage& stage, const Case& item, const Launcher& launcher);

/// All stages, in the order of the decode step.
const std::vector<Stage>& all_stages();
/// Refuses an unknown name, listing the known ones.
const Stage& find_stage(std::string_view name);
/// `NAME[,NAME]` or `all`.
std::vector<const Stage*> select_stages(std::string_view names);
/// The stage that adopts recordings of this `stage` attribute; null if none does.
const Stage* stage_for_recording(std::string_view recorded_stage);

/// Builds a generated case with its line filled in.
Case build_case(const Stage& stage, const Params& params, const Contract& contract,
                std::uint64_t seed);
/// Builds the case that a repro line names. Refuses a line of another generator version.
Case build_case(const CaseLine& line);
void check_generator_version(const Stage& stage, const CaseLine& line);

}  // namespace monoref
