// How a launch is run, where any way must give the same results.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace monoref::device::gfx {

/// Who runs next. Any order must give the same results.
enum class Schedule : std::uint8_t {
  kRunAhead,    ///< a wave runs until it waits
  kRoundRobin,  ///< every wave in turn, a few instructions each
  kRandom,      ///< any wave, any number of instructions
};

/// How matrix instructions add floating-point products (matrix-cores sections 1 to 3).
enum class MatrixModel : std::uint8_t {
  kExact,            ///< products and accumulator are added exactly and rounded once
  kPortable,         ///< a chain of fma in the order of k
  kCdna3Microsoft,   ///< gfx942 by the public model MMA-Sim as first published
  kCdna3Peichenxie,  ///< the same by its later revision
};
std::string_view name_of(MatrixModel model);
/// The model of that name; nothing if there is none.
std::optional<MatrixModel> matrix_model(std::string_view name);
/// All names, for messages.
std::string matrix_model_names();
/// What a verdict that rests on a chip's floating-point matrix instructions must say.
std::string matrix_note(std::string_view chip, MatrixModel model);

/// What launches did, for their verdict and for reports.
struct Observations {
  bool has_float_matrix = false;   ///< floating-point matrix instructions were executed
  std::uint64_t instructions = 0;  ///< of all waves
};

/// How a launch is run.
struct Manner {
  Schedule schedule = Schedule::kRunAhead;
  std::uint64_t seed = 1;  ///< of the garbage in registers and LDS, and of a random schedule
  MatrixModel matrix = MatrixModel::kExact;
  Observations* observed = nullptr;  ///< where given, added to; lives as long as the backend
};

}  // namespace monoref::device::gfx
