// The `monoref` program: command line to commands, exceptions to exit codes.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include "fuzz/commands/commands.hpp"
#include "golden/file_error.hpp"

namespace {

using namespace monoref;

constexpr const char* kAbout =
    "monoref: is a decode kernel right? For every stage of the MiniMax-M3 decode step there is a "
    "CPU\n"
    "reference whose bits are the contract, a kernel beside it, and a fuzzer that looks for inputs "
    "on\n"
    "which the two differ.\n\n"
    "Exit codes: 0 all as it should be; 1 something wrong, crashed or hung, or a mutant survived;\n"
    "2 bad usage, bad input or an unexpected refusal; 3 the backend is not available here.";

void add_common(CLI::App& command, CommonOptions& common) {
  command.add_option("--stage", common.stages, "NAME[,NAME] or all")->capture_default_str();
  command.add_option("--backend", common.backend, "host, amd, nvidia or plugin:PATH")
      ->capture_default_str();
  command.add_option("--wave", common.wave,
                     "lanes of a wave on the host backend: 64, 32 or both (check and replay: both; "
                     "fuzz: 64)");
  command.add_option("--contract", common.contract,
                     "PRESET[,field=value...]; `monoref list` shows them");
  command.add_option("--seed", common.seed, "seed of a campaign")->capture_default_str();
  command.add_option("--json", common.json, "write every case and a summary to this file");
  command.add_flag("--quiet", common.quiet, "failures and the last line only");
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
  auto* cases = fuzz->add_option("--cases", fuzz_options.cases, "stop after this many cases");
  fuzz->add_option("--seconds", fuzz_options.seconds,
                   "stop after this time (60 if neither is given)")
      ->excludes(cases)
      ->check(CLI::PositiveNumber);
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
  mutants
      ->add_option("--cases", mutants_options.cases,
                   "that every mutant is tried on, unless it dies before")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 40))
      ->capture_default_str();
  mutants->add_option("--only", mutants_options.only, "one mutant by name");

  CLI::App* overnight = app.add_subcommand(
      "overnight",
      "fuzz for hours in shards, each a process; stopped and started again it goes on");
  OvernightArguments night;
  overnight->add_option("FOLDER", night.folder, "what is done, logs and findings")->required();
  overnight->add_option("--hours", night.hours, "from now on")->capture_default_str();
  overnight->add_option("--shards", night.shards, "processes")->capture_default_str();
  overnight->add_option("--round-seconds", night.round_seconds, "of one process")
      ->capture_default_str();

  CLI::App* bench = app.add_subcommand("bench", "measure speed");
  for (CLI::App* command : {list, check, fuzz, replay, regen, verify, mutants, bench})
    add_common(*command, common);
  for (CLI::App* command : {check, fuzz, replay, mutants, bench})
    command->add_option("--devices", common.devices,
                        "devices of amd or nvidia, like 0,1: each has its own ranks (default 0)");
  for (CLI::App* command : {check, fuzz, replay, mutants})
    command
        ->add_option("--time-limit", common.time_limit,
                     "seconds of processor time after which one run of one case counts as hung")
        ->check(CLI::Range(0.001, 86400.0))
        ->capture_default_str();

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (*list) return list_command(common);
  if (*check) return check_command(common, files);
  if (*fuzz) return fuzz_command(common, fuzz_options);
  if (*replay) return replay_command(common, target, bisect);
  if (*regen) return golden_regen_command(common, folder);
  if (*verify) return golden_verify_command(common, folder);
  if (*overnight) return overnight_command(night);
  if (*mutants) return mutants_command(common, mutants_options);
  return bench_command(common);
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_streams();
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
