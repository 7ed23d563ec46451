// The `monoref` program: command line to commands, exceptions to exit codes.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <limits>

#include "fuzz/commands/commands.hpp"
#include "fuzz/commands/gfx.hpp"
#include "fuzz/stop.hpp"

namespace {

using namespace monoref;

constexpr const char* kAbout =
    "monoref: is a decode kernel right? For every stage of the MiniMax-M3 decode step there is a "
    "CPU\n"
    "reference whose bits are the contract, a kernel beside it, and a fuzzer that looks for inputs "
    "on\n"
    "which the two differ.\n\n"
    "Exit codes: 0 all as it should be; 1 something wrong, crashed or hung, a mutant survived, or "
    "a\n"
    "finding that could not be saved; 2 bad usage, bad input or an unexpected refusal; 3 the "
    "backend\n"
    "is not available here, or was asked for and ran nothing; 75 stopped before the end with "
    "nothing\n"
    "wrong found. 1 wins over 2, and 2 over 3.";

/// A whole number of 64 bits, written as one: what the parser would take of others is no number.
std::uint64_t whole_number(const std::string& option, const std::string& text, std::uint64_t low,
                           std::uint64_t high) {
  std::uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end || value < low || value > high)
    refuse("{}: '{}' must be a whole number from {} to {}", option, text, low, high);
  return value;
}

double seconds_number(const std::string& option, const std::string& text, double least,
                      double most) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end || !(value >= least && value <= most))
    refuse("{}: '{}' must be a number of seconds from {:g} to {:.0f}", option, text, least, most);
  return value;
}

CLI::Option* add_whole_number(CLI::App& command, const std::string& option,
                              const std::function<void(std::uint64_t)>& take, std::uint64_t low,
                              const std::string& help,
                              std::uint64_t high = std::numeric_limits<std::uint64_t>::max()) {
  return command.add_option_function<std::string>(
      option, [=](const std::string& text) { take(whole_number(option, text, low, high)); }, help);
}

CLI::Option* add_seconds(CLI::App& command, const std::string& option,
                         const std::function<void(double)>& take, const std::string& help,
                         double most) {
  constexpr double kLeast = 0.001;
  return command.add_option_function<std::string>(
      option, [=](const std::string& text) { take(seconds_number(option, text, kLeast, most)); },
      help);
}

// Every command takes the options that act on it, and no others.

void add_stage(CLI::App& command, CommonOptions& common) {
  command.add_option("--stage", common.stages, "NAME[,NAME] or all")->capture_default_str();
}

void add_backend(CLI::App& command, CommonOptions& common) {
  command
      .add_option("--backend", common.backend, "host, amd, nvidia, gfx942, gfx950 or plugin:PATH")
      ->capture_default_str();
}

void add_wave(CLI::App& command, CommonOptions& common) {
  command.add_option("--wave", common.wave,
                     "lanes of a wave on the host backend: 64, 32 or both (default: both; fuzz, "
                     "mutants: each in turn)");
}

void add_contract(CLI::App& command, CommonOptions& common) {
  command.add_option("--contract", common.contract,
                     "PRESET[,field=value...]; `monoref list` shows them");
}

void add_seed(CLI::App& command, CommonOptions& common) {
  add_whole_number(
      command, "--seed", [&](std::uint64_t seed) { common.seed = seed; }, 0, "seed of a campaign")
      ->default_str("1");
}

void add_json(CLI::App& command, CommonOptions& common) {
  command.add_option("--json", common.json, "write every case and a summary to this file");
}

void add_quiet(CLI::App& command, CommonOptions& common) {
  command.add_flag("--quiet", common.quiet, "failures and the last two lines only");
}

/// Daemons start programs without standard streams. Files opened later must not become them.
void open_standard_streams() {
  for (int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(stream, F_GETFD) < 0) open("/dev/null", O_RDWR);
}

int run(int argc, char** argv) {
  CLI::App app{kAbout, "monoref"};
  app.require_subcommand(1);
  CommonOptions common;

  CLI::App* list = app.add_subcommand("list", "stages, their dimensions and the contracts");
  CLI::App* check = app.add_subcommand(
      "check",
      "judge case files and recordings: reference against stored outputs, backend against "
      "reference");
  std::vector<std::filesystem::path> files;
  check->add_option("FILE", files, "case files or recorded-cases/1 files")->required();

  CLI::App* fuzz =
      app.add_subcommand("fuzz", "look for inputs on which backend and reference differ");
  FuzzOptions fuzz_options;
  auto* cases = add_whole_number(
      *fuzz, "--cases", [&](std::uint64_t count) { fuzz_options.cases = count; }, 1,
      "stop after this many cases");
  add_seconds(
      *fuzz, "--seconds", [&](double seconds) { fuzz_options.seconds = seconds; },
      "stop after this time (60 if neither is given)", 1e9)
      ->excludes(cases);
  fuzz->add_option("--shard", fuzz_options.shard, "i/n: take every n-th case from the i-th on")
      ->capture_default_str();
  fuzz->add_option("--corpus", fuzz_options.corpus,
                   "folder of findings: replayed first, new ones saved there");

  CLI::App* replay =
      app.add_subcommand("replay", "run one repro line or the cases of a file again");
  std::string target;
  bool bisect = false;
  replay->add_option("LINE|FILE", target, "'stage=...;seed=...;...' or a case file")->required();
  replay->add_flag("--bisect", bisect,
                   "name the first stage and element that differ, and the inputs that lead there; "
                   "with --contract: where the case's contract and that one part");

  CLI::App* golden = app.add_subcommand("golden", "the stored cases of this source tree");
  golden->require_subcommand(1);
  std::filesystem::path folder = default_golden_folder();
  CLI::App* regen = golden->add_subcommand("regen", "write golden/generated anew");
  CLI::App* verify = golden->add_subcommand("verify", "reference against every golden file");
  for (CLI::App* command : {regen, verify})
    command->add_option("--folder", folder, "where the golden files are")->capture_default_str();

  CLI::App* mutants = app.add_subcommand("mutants", "plant faults in the kernels and find them");
  MutantsOptions mutants_options;
  add_whole_number(
      *mutants, "--cases", [&](std::uint64_t count) { mutants_options.cases = count; }, 1,
      "that every mutant is tried on, unless it dies before", std::uint64_t{1} << 40)
      ->default_str(fmt::format("{}", mutants_options.cases));
  mutants->add_option_function<std::string>(
      "--only",
      [&](const std::string& name) {
        if (name.empty()) refuse("--only: '' names no mutant");
        mutants_options.only = name;
      },
      "one mutant by name");

  CLI::App* overnight = app.add_subcommand(
      "overnight",
      "fuzz for hours in shards, each a process; stopped and started again it goes on");
  OvernightArguments night;
  overnight->add_option("FOLDER", night.folder, "what is done, logs and findings")->required();
  overnight->add_option("--hours", night.hours, "from now on")->capture_default_str();
  overnight->add_option("--shards", night.shards, "processes")->capture_default_str();
  overnight->add_option("--round-seconds", night.round_seconds, "of one process")
      ->capture_default_str();

  CLI::App* gfx = app.add_subcommand("gfx", "AMD code objects, whoever compiled them");
  gfx->require_subcommand(1);
  GfxRunOptions gfx_options;
  CLI::App* describe = gfx->add_subcommand("describe", "what a code object says of itself");
  CLI::App* execute = gfx->add_subcommand("run", "execute a launch and compare memory after it");
  for (CLI::App* command : {describe, execute})
    command->add_option("FILE", gfx_options.file, "a code object of gfx942 or gfx950")->required();
  execute
      ->add_option("--launch", gfx_options.launch,
                   "safetensors file with the launch and the memory before and after it")
      ->required();
  execute
      ->add_option("--mfma", gfx_options.mfma,
                   "how matrix instructions add: exact, portable, cdna3-mmasim-microsoft or "
                   "cdna3-mmasim-peichenxie")
      ->capture_default_str();
  for (CLI::App* command : {describe, execute}) add_json(*command, common);
  add_quiet(*execute, common);

  CLI::App* bench = app.add_subcommand("bench", "measure speed");
  for (CLI::App* command : {list, check, fuzz, replay, regen, verify, mutants, bench}) {
    add_stage(*command, common);
    add_json(*command, common);
  }
  for (CLI::App* command : {check, fuzz, replay, regen, verify, mutants})
    add_quiet(*command, common);
  for (CLI::App* command : {check, fuzz, replay, mutants, bench}) add_backend(*command, common);
  for (CLI::App* command : {check, fuzz, replay, mutants, bench}) add_wave(*command, common);
  for (CLI::App* command : {list, check, fuzz, replay}) add_contract(*command, common);
  for (CLI::App* command : {fuzz, mutants, bench}) add_seed(*command, common);
  for (CLI::App* command : {check, fuzz, replay, mutants, bench})
    command->add_option("--devices", common.devices,
                        "devices of amd or nvidia, like 0,1: each has its own ranks (default 0)");
  for (CLI::App* command : {check, fuzz, replay, mutants, execute})
    add_seconds(
        *command, "--time-limit", [&](double seconds) { common.time_limit = seconds; },
        "seconds of processor time after which one run of one case counts as hung", 86400)
        ->default_str(fmt::format("{}", common.time_limit));

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  for (const CLI::App* command : {check, fuzz, replay})
    if (*command && command->count("--backend") > 0) common.must_run = true;
  if (*list) return list_command(common);
  if (*check) return check_command(common, files);
  if (*fuzz) return fuzz_command(common, fuzz_options);
  if (*replay) return replay_command(common, target, bisect);
  if (*regen) return golden_regen_command(common, folder);
  if (*verify) return golden_verify_command(common, folder);
  if (*describe) return gfx_describe_command(common, gfx_options.file);
  if (*execute) return gfx_run_command(common, gfx_options);
  if (*overnight) return overnight_command(night);
  if (*mutants) return mutants_command(common, mutants_options);
  return bench_command(common);
}

int run_to_code(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const monoref::device::Unavailable& unavailable) {
    fmt::print(stderr, "monoref: {}\n", unavailable.message);
    return 3;
  } catch (const std::exception& error) {
    fmt::print(stderr, "monoref: {}\n", error.what());
    return 2;
  }
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_streams();
  std::signal(SIGPIPE, SIG_IGN);  // who stops listening stops nothing else
  monoref::note_stop_signals();
  const int code = run_to_code(argc, argv);
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  std::fputs("monoref: standard output could not be written\n", stderr);
  return code == 0 ? 2 : code;
}
