// Checks files whose content was made wrong under a valid seal. `monoref check` must give each of
// them a verdict: the kernels are as they were, so they agree with the reference or the case is
// refused in words that name what is wrong.
//
//   mutate_cases check PROGRAM [--count N] [--first N] [--seed N] [--seconds T] [--stage NAME]
//                [--keep FOLDER]
//   mutate_cases write NUMBER FILE [--seed N] [--stage NAME]
//
// A mutant is a function of seed, stage and number, and of the golden files. The exit code of
// `check` is 1 if anything was found.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <map>

#include "tests/fuzz/case_mutations.hpp"
#include "tests/fuzz/check_findings.hpp"
#include "tests/fuzz/watched_process.hpp"

namespace monoref::testing {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string program;
  std::string golden = MONOREF_GOLDEN_FILES;
  std::string stage = "all";
  std::string keep;
  std::string file;
  std::uint64_t count = 500;
  std::uint64_t first = 0;
  std::uint64_t seed = 1;
  double seconds = 0;
};

/// A folder that goes away with the run.
struct Workplace {
  fs::path folder = fs::temp_directory_path() / fmt::format("mutate_cases.{}", getpid());
  Workplace() { fs::create_directories(folder); }
  Workplace(const Workplace&) = delete;
  Workplace& operator=(const Workplace&) = delete;
  ~Workplace() { fs::remove_all(folder); }
};

std::vector<GoldenStage> golden_of(const Options& options) {
  std::vector<GoldenStage> golden = load_golden(options.golden);
  if (options.stage != "all")
    std::erase_if(golden, [&](const GoldenStage& one) { return one.name != options.stage; });
  if (golden.empty())
    throw std::runtime_error(
        fmt::format("no golden cases of '{}' in '{}'", options.stage, options.golden));
  return golden;
}

/// False if the library has no form for it, as for an axis that is too long beside an empty one.
bool write_file(const CaseMutant& mutant, const fs::path& path) {
  fs::remove(path);
  try {
    write_hdf5(path, mutant.root);
    return true;
  } catch (const std::runtime_error&) {
    return false;
  }
}

/// Findings that differ in numbers only are one kind.
std::string kind_of(const std::string& stage, const std::string& finding) {
  std::string kind = stage + ": ";
  for (const char c : finding) {
    const bool is_digit = c >= '0' && c <= '9';
    if (!is_digit)
      kind += c;
    else if (kind.back() != '#')
      kind += '#';
  }
  return kind;
}

/// Texts of damaged files are anybody's, and some are long.
std::string shown(const std::string& text) {
  std::string line = text.substr(0, 300);
  for (char& c : line)
    if (c < 0x20 || c > 0x7e) c = '?';
  return line;
}

struct Finding {
  std::uint64_t times = 0;
  std::uint64_t number = 0;  ///< of the first mutant that showed it
  std::string text;
  std::vector<std::string> changes;
};

class Campaign {
 public:
  explicit Campaign(const Options& options) : options_(options) {}

  void run() {
    const auto start = std::chrono::steady_clock::now();
    for (; done_ < options_.count; ++done_) {
      const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
      if (options_.seconds > 0 && spent.count() > options_.seconds) break;
      check(options_.first + done_);
    }
  }

  int report() const {
    for (const auto& [verdict, times] : verdicts_) fmt::print("{:>8}  {}\n", times, verdict);
    for (const auto& [kind, finding] : findings_) {
      fmt::print("{} times: {}, first mutant {}: {}\n", finding.times,
                 kind.substr(0, kind.find(':')), finding.number, shown(finding.text));
      for (const std::string& change : finding.changes) fmt::print("    {}\n", shown(change));
    }
    fmt::print("slowest mutant {}: {:.1f} s of processor time; largest mutant {}: {} MiB\n",
               slowest_, most_seconds_, largest_, most_bytes_ >> 20);
    fmt::print("mutate_cases: {} mutants of seed {}, {} with findings of {} kinds", done_,
               options_.seed, bad_, findings_.size());
    for (const auto& [word, times] : words_) fmt::print(", {} {}", times, word);
    fmt::print("\n");
    return findings_.empty() ? 0 : 1;
  }

 private:
  void check(std::uint64_t number) {
    const CaseMutant mutant = make_mutant(golden_, options_.seed, number);
    const fs::path file = place_.folder / "mutant.h5";
    const fs::path json = place_.folder / "mutant.json";
    if (!write_file(mutant, file)) {
      ++verdicts_["no such file"];
      return;
    }
    fs::remove(json);
    const ProcessRun ran =
        run_watched({options_.program, "check", "--quiet", "--json", json.string(), file.string()},
                    place_.folder / "output", {});
    const CheckOutcome outcome = judge_check(mutant, file, json, ran);
    ++verdicts_[outcome.verdict.empty() ? "no verdict" : outcome.verdict];
    if (ran.cpu_seconds > most_seconds_) most_seconds_ = ran.cpu_seconds, slowest_ = number;
    if (ran.peak_bytes > most_bytes_) most_bytes_ = ran.peak_bytes, largest_ = number;
    for (const std::string& text : outcome.findings) {
      Finding& finding = findings_[kind_of(mutant.stage, text)];
      ++words_[text.substr(0, text.find(':'))];
      if (finding.times++ == 0)
        finding = {.times = 1, .number = number, .text = text, .changes = mutant.changes};
    }
    bad_ += outcome.findings.empty() ? 0 : 1;
    if (!outcome.findings.empty() && !options_.keep.empty()) {
      fs::create_directories(options_.keep);
      fs::copy_file(file, fs::path(options_.keep) / fmt::format("{}-{}.h5", number, mutant.stage),
                    fs::copy_options::overwrite_existing);
    }
  }

  const Options& options_;
  Workplace place_;
  std::vector<GoldenStage> golden_ = golden_of(options_);
  std::map<std::string, std::uint64_t> verdicts_, words_;
  std::map<std::string, Finding> findings_;
  std::uint64_t done_ = 0, bad_ = 0, slowest_ = 0, largest_ = 0;
  double most_seconds_ = 0;
  std::size_t most_bytes_ = 0;
};

int write_one(const Options& options) {
  const CaseMutant mutant = make_mutant(golden_of(options), options.seed, options.first);
  for (const std::string& change : mutant.changes) fmt::print("{}\n", shown(change));
  if (write_file(mutant, options.file)) return 0;
  fmt::print(stderr, "mutate_cases: mutant {} cannot be a file\n", options.first);
  return 1;
}

int run(int argc, char** argv) {
  CLI::App app{"checks files whose content was made wrong under a valid seal", "mutate_cases"};
  app.require_subcommand(1);
  Options options;
  CLI::App* check = app.add_subcommand("check", "run a program's `check` on mutants");
  check->add_option("PROGRAM", options.program)->required()->check(CLI::ExistingFile);
  check->add_option("--count", options.count, "mutants to try")->capture_default_str();
  check->add_option("--seconds", options.seconds, "stop before the next one after this time");
  check->add_option("--first", options.first, "number of the first")->capture_default_str();
  check->add_option("--keep", options.keep, "folder for files that show a finding");
  CLI::App* write = app.add_subcommand("write", "write one mutant as a file");
  write->add_option("NUMBER", options.first)->required();
  write->add_option("FILE", options.file)->required();
  for (CLI::App* command : {check, write}) {
    command->add_option("--seed", options.seed)->capture_default_str();
    command->add_option("--stage", options.stage, "mutants of one stage only");
    command->add_option("--golden", options.golden, "folder of golden files");
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (*write) return write_one(options);
  Campaign campaign(options);
  campaign.run();
  return campaign.report();
}

}  // namespace
}  // namespace monoref::testing

int main(int argc, char** argv) {
  try {
    return monoref::testing::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "mutate_cases: {}\n", error.what());
    return 2;
  }
}
