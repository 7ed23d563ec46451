#include "fuzz/commands/gfx.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

#include "device/backends/gfx/backend.hpp"
#include "device/backends/gfx/inspect.hpp"
#include "fuzz/launch_file.hpp"
#include "fuzz/report.hpp"
#include "fuzz/session.hpp"
#include "reference/core/error.hpp"
#include "reference/core/excerpt.hpp"

namespace monoref {
namespace {

using device::gfx::Description;
using device::gfx::Kernel;
using device::gfx::KernelParameter;
using device::gfx::Opcode;

std::string rounding_name(unsigned mode) {
  constexpr std::array<const char*, 4> kNames{"to nearest", "up", "down", "toward zero"};
  return kNames.at(mode & 3);
}
std::string denormal_name(unsigned mode) {
  constexpr std::array<const char*, 4> kNames{"flushed", "flushed in results", "flushed in sources",
                                              "kept"};
  return kNames.at(mode & 3);
}
std::string modes_of(const Kernel& kernel) {
  const device::gfx::Mode& mode = kernel.mode;
  return fmt::format(
      "binary32 rounds {}, subnormals {}; binary16 and binary64 round {}, subnormals {}; IEEE {}; "
      "clamp of NaN {}; FP16 overflow {}",
      rounding_name(mode.round32), denormal_name(mode.denorm32), rounding_name(mode.round64),
      denormal_name(mode.denorm64), mode.ieee ? "on" : "off", mode.dx10_clamp ? "0" : "NaN",
      mode.fp16_overflow ? "saturates" : "is infinite");
}

void print_kernel(const Kernel& kernel) {
  say("kernel {}\n", kernel.name);
  say("  {} threads a block at most; {} vector registers, {} of them accumulators; {} scalar "
      "registers\n",
      kernel.max_threads, kernel.vector_registers, kernel.accumulators, kernel.scalar_registers);
  say("  LDS {} bytes, scratch {} bytes a lane{}\n", kernel.shared_bytes, kernel.private_bytes,
      kernel.dynamic_stack ? " and a stack of any size" : "");
  say("  modes: {}\n", modes_of(kernel));
  say("  arguments: {} bytes, of which {} are preloaded\n", kernel.argument_bytes,
      4 * kernel.preloaded_words);
  for (const KernelParameter& parameter : kernel.parameters)
    say("    offset {:4}  {:3} bytes  {:24} {}\n", parameter.offset, parameter.size, parameter.kind,
        parameter.name);
}

nlohmann::json kernel_json(const Kernel& kernel) {
  nlohmann::json parameters = nlohmann::json::array();
  for (const KernelParameter& parameter : kernel.parameters)
    parameters.push_back({{"name", parameter.name},
                          {"kind", parameter.kind},
                          {"offset", parameter.offset},
                          {"size", parameter.size}});
  const device::gfx::Mode& mode = kernel.mode;
  return {{"name", kernel.name},
          {"max_threads", kernel.max_threads},
          {"vector_registers", kernel.vector_registers},
          {"accumulators", kernel.accumulators},
          {"scalar_registers", kernel.scalar_registers},
          {"lds_bytes", kernel.shared_bytes},
          {"scratch_bytes", kernel.private_bytes},
          {"argument_bytes", kernel.argument_bytes},
          {"preloaded_words", kernel.preloaded_words},
          {"arguments", parameters},
          {"modes",
           {{"round32", mode.round32},
            {"round16_64", mode.round64},
            {"denormals32", mode.denorm32},
            {"denormals16_64", mode.denorm64},
            {"ieee", mode.ieee},
            {"dx10_clamp", mode.dx10_clamp},
            {"fp16_overflow", mode.fp16_overflow}}}};
}

/// A tensor's element as people read it.
std::string element_text(const StoredTensor& tensor, const std::byte* at) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, at, tensor.element_size);
  const std::string hex = fmt::format("0x{:0{}x}", bits, 2 * tensor.element_size);
  if (tensor.dtype == "F32")
    return fmt::format("{} ({})", std::bit_cast<float>(static_cast<std::uint32_t>(bits)), hex);
  return hex;
}

/// Compares a buffer with what it must be, bit for bit.
void compare_buffer(const LaunchArgument& argument, const std::vector<std::byte>& got,
                    RunResult& run) {
  const StoredTensor& expected = argument.after ? *argument.after : argument.before;
  const std::size_t size = expected.element_size;
  OutputTally tally{.name = argument.name};
  for (std::size_t at = 0; at < got.size(); at += size) {
    ++tally.elements;
    if (std::memcmp(got.data() + at, expected.bytes.data() + at, size) == 0) {
      ++tally.exact;
      continue;
    }
    ++tally.wrong;
    if (run.first_difference) continue;
    Difference difference{.output = argument.name,
                          .expected = element_text(expected, expected.bytes.data() + at),
                          .got = element_text(expected, got.data() + at)};
    auto place = static_cast<std::int64_t>(at / size);
    for (std::size_t axis = expected.dims.size(); axis-- > 0;) {
      difference.index.insert(difference.index.begin(),
                              {fmt::format("axis {}", axis), place % expected.dims[axis]});
      place /= expected.dims[axis];
    }
    run.first_difference = std::move(difference);
  }
  if (tally.wrong > 0) run.verdict = Verdict::kWrong;
  if (argument.after || tally.wrong > 0) run.outputs.push_back(std::move(tally));
}

const Kernel& kernel_of(const Description& object, const LaunchFile& launch,
                        const std::string& file) {
  const auto found =
      std::find_if(object.kernels.begin(), object.kernels.end(),
                   [&](const Kernel& kernel) { return kernel.name == launch.kernel; });
  if (found == object.kernels.end())
    refuse("{}: has no kernel '{}'; the first is '{}'", file, excerpt(launch.kernel),
           object.kernels.front().name);
  return *found;
}

/// Holds what a launch says of its kernel against the code object.
void check_launch(const Kernel& kernel, const LaunchFile& launch) {
  const auto same = [&](const char* what, std::uint32_t of_launch, std::uint32_t of_object) {
    if (of_launch != of_object)
      refuse("kernel '{}': {} is {} in the launch and {} in the code object", kernel.name, what,
             of_launch, of_object);
  };
  same("kernarg_bytes", launch.kernarg_bytes, kernel.argument_bytes);
  same("preloaded_dwords", launch.preloaded_dwords, kernel.preloaded_words);
  same("private_bytes", launch.private_bytes, kernel.private_bytes);
  same("static_lds", launch.static_lds, kernel.shared_bytes);
  std::size_t next = 0;
  for (const KernelParameter& parameter : kernel.parameters) {
    if (parameter.is_hidden()) continue;
    while (next < launch.arguments.size() &&
           launch.arguments[next].kind == LaunchArgument::Kind::kHidden)
      ++next;
    if (next == launch.arguments.size())
      refuse("kernel '{}': its argument '{}' is not in the launch", kernel.name, parameter.name);
    const LaunchArgument& argument = launch.arguments[next++];
    if (argument.offset != parameter.offset || argument.size != parameter.size)
      refuse(
          "kernel '{}': argument '{}' has offset {} and {} bytes in the launch, {} and {} in "
          "the code object",
          kernel.name, argument.name, argument.offset, argument.size, parameter.offset,
          parameter.size);
  }
  for (; next < launch.arguments.size(); ++next)
    if (launch.arguments[next].kind != LaunchArgument::Kind::kHidden)
      refuse("kernel '{}': has no argument '{}'", kernel.name, launch.arguments[next].name);
}

/// Launches, and compares every buffer.
RunResult run_launch(device::Backend& backend, const LaunchFile& launch) {
  std::vector<device::BufferRequest> requests;
  for (const LaunchArgument& argument : launch.arguments) {
    if (argument.kind != LaunchArgument::Kind::kPointer) continue;
    device::BufferRequest request{.name = argument.name, .image = argument.before.bytes};
    if (!request.image.empty()) request.extents.push_back({0, request.image.size()});
    requests.push_back(std::move(request));
  }
  backend.place(requests);
  std::vector<std::vector<std::byte>> values;
  std::size_t buffer = 0;
  for (const LaunchArgument& argument : launch.arguments) {
    if (argument.kind == LaunchArgument::Kind::kHidden) continue;
    values.push_back(argument.value);
    if (argument.kind != LaunchArgument::Kind::kPointer) continue;
    void* const address = backend.address(buffer++);
    std::memcpy(values.back().data(), &address, sizeof address);
  }
  std::vector<device::KernelArgument> arguments;
  for (const auto& value : values)
    arguments.push_back({value.data(), static_cast<std::uint32_t>(value.size())});
  const device::Grid grid{.blocks_x = launch.grid[0],
                          .blocks_y = launch.grid[1],
                          .blocks_z = launch.grid[2],
                          .threads_x = launch.threads[0],
                          .threads_y = launch.threads[1],
                          .threads_z = launch.threads[2],
                          .shared_bytes = launch.dynamic_lds};
  backend.launch(launch.kernel, grid, arguments);
  const device::RunReport report = backend.finish();
  RunResult run{.runner = backend.name(), .wave = backend.wave(), .is_case = true};
  const auto damage = report.status == device::RunStatus::kOk ? backend.damaged_guard()
                                                              : std::optional<std::string>();
  if (report.status != device::RunStatus::kOk || damage) {
    run.verdict = report.status == device::RunStatus::kHung ? Verdict::kHung : Verdict::kCrashed;
    run.message = damage.value_or(report.message);
    return run;
  }
  buffer = 0;
  for (const LaunchArgument& argument : launch.arguments) {
    if (argument.kind != LaunchArgument::Kind::kPointer) continue;
    std::vector<std::byte> got(argument.before.bytes.size());
    backend.read(buffer++, got);
    compare_buffer(argument, got, run);
  }
  return run;
}

}  // namespace

int gfx_describe_command(const CommonOptions& common, const std::filesystem::path& file) {
  JsonFile json(common.json);
  const Description object = device::gfx::describe(file);
  say("{}: {}, code object version {}, {} kernels\n", file.filename().string(), object.chip,
      object.version, object.kernels.size());
  nlohmann::json kernels = nlohmann::json::array();
  for (const Kernel& kernel : object.kernels) {
    print_kernel(kernel);
    kernels.push_back(kernel_json(kernel));
  }
  nlohmann::json opcodes = nlohmann::json::array();
  std::string unknown;
  std::string known;
  for (const Opcode& opcode : object.opcodes) {
    (opcode.unknown > 0 ? unknown : known) += fmt::format(" {}", opcode.name);
    opcodes.push_back(
        {{"name", opcode.name}, {"count", opcode.count}, {"unknown", opcode.unknown}});
  }
  say("opcodes:{}\n", known);
  const auto strange = std::count_if(object.opcodes.begin(), object.opcodes.end(),
                                     [](const Opcode& opcode) { return opcode.unknown > 0; });
  if (strange == 0)
    say("gfx: {} opcodes, all known\n", object.opcodes.size());
  else
    say("gfx: {} opcodes, {} not known:{}\n", object.opcodes.size(), strange, unknown);
  json.set("chip", object.chip);
  json.set("version", object.version);
  json.set("kernels", kernels);
  json.set("opcodes", opcodes);
  return json.finish({{"command", "gfx"}, {"opcodes", object.opcodes.size()}, {"unknown", strange}})
             ? 0
             : 2;
}

int gfx_run_command(const CommonOptions& common, const GfxRunOptions& options) {
  device::gfx::Observations seen;
  device::gfx::Manner manner{.observed = &seen};
  const auto model = device::gfx::matrix_model(options.mfma);
  if (!model)
    refuse("--mfma: '{}' is not one of {}", options.mfma, device::gfx::matrix_model_names());
  manner.matrix = *model;
  const Description object = device::gfx::describe(options.file);
  const LaunchFile launch = read_launch_file(options.launch);
  check_launch(kernel_of(object, launch, options.file.string()), launch);
  Session session("gfx", common.json, true);
  const auto backend = device::make_gfx_backend_of(options.file, manner);
  backend->set_time_limit(common.time_limit);
  session.runner(runner_token(backend->name(), backend->wave()));
  CaseResult result{
      .stage = launch.kernel,
      .title = options.launch.filename().string(),
      .contract = fmt::format("mfma {}", options.mfma),
      .repro = fmt::format("monoref gfx run {} --launch {} --mfma {}", options.file.string(),
                           options.launch.string(), options.mfma)};
  try {
    result.runs.push_back(run_launch(*backend, launch));
  } catch (const device::Unavailable& unavailable) {
    session.unavailable(unavailable.message);
    return session.finish();
  }
  session.add(result);
  if (!common.quiet)
    say("{}: kernel {}, {} x {} x {} blocks, {} wave instructions\n",
        options.launch.filename().string(), launch.kernel, launch.grid[0], launch.grid[1],
        launch.grid[2], seen.instructions);
  for (const OutputTally& tally : result.runs.front().outputs)
    if (!common.quiet || tally.wrong > 0)
      say("  {}: {} elements, {} the same, {} different\n", tally.name, tally.elements, tally.exact,
          tally.wrong);
  print_unless_right(result);
  session.add_json("instructions", seen.instructions);
  if (seen.has_float_matrix) {
    const std::string note = device::gfx::matrix_note(object.chip, *model);
    say("{}\n", note);
    session.add_json("note", note);
  }
  return session.finish();
}

}  // namespace monoref
