// The commands of the `monoref` program. Each returns the exit code: 0 right, 1 wrong found, 2 bad
// usage or input, 3 backend not available or without a case, 75 stopped before the end.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/runner.hpp"

namespace monoref {

/// Options that every command takes.
struct CommonOptions {
  std::string stages = "all";
  std::string backend = "host";
  bool must_run = false;  ///< the backend was asked for: a run without it is not right
  std::string wave;       ///< "64", "32", "both", or empty for the command's default
  std::string devices;    ///< "0,1"; empty: the first one
  std::optional<std::string> contract;
  std::uint64_t seed = 1;
  std::filesystem::path json;
  bool quiet = false;
  double time_limit = kTimeLimit;  ///< seconds that one run of one case may take

  std::optional<Contract> parsed_contract() const;
  /// The numbers in --devices. Refuses them for a backend that has none.
  std::vector<int> parsed_devices() const;
};

/// The waves that --wave names: 64, 32 or both.
std::vector<int> waves_of(const std::string& text);
/// The runners that --backend and --wave name. Throws device::Unavailable or Refusal.
std::vector<std::unique_ptr<Runner>> make_runners(const CommonOptions& options,
                                                  const std::string& default_wave);
std::vector<Runner*> pointers(const std::vector<std::unique_ptr<Runner>>& runners);

/// Refuses, by --backend and --wave alone, what `make_runners` would; makes nothing.
void check_backend(const CommonOptions& options);

/// Whether a case of this stage, or a recording that speaks of these ("qk_norm_rope,
/// kv_cache_insert"), is to be judged. One of a stage that there is not is, unless others were
/// asked for: judging it says so.
bool is_selected(const std::vector<const Stage*>& stages, std::string_view names);

/// Golden files of this source tree, as built; an option overrides it.
std::filesystem::path default_golden_folder();

int list_command(const CommonOptions& common);

int check_command(const CommonOptions& common, const std::vector<std::filesystem::path>& files);

struct FuzzOptions {
  std::optional<std::uint64_t> cases;
  std::optional<double> seconds;
  std::string shard = "0/1";
  std::filesystem::path corpus;
};
int fuzz_command(const CommonOptions& common, const FuzzOptions& options);

/// With `bisect` a failure also names the first stage and element that differ, and the inputs
/// there.
int replay_command(const CommonOptions& common, const std::string& target, bool bisect);

int golden_regen_command(const CommonOptions& common, const std::filesystem::path& folder);
int golden_verify_command(const CommonOptions& common, const std::filesystem::path& folder);

struct MutantsOptions {
  std::uint64_t cases = 4000;  ///< that every mutant is tried on, unless it dies before
  std::string only;
};
int mutants_command(const CommonOptions& common, const MutantsOptions& options);

/// As written: whoever mistypes one is told in a sentence.
struct OvernightArguments {
  std::filesystem::path folder;
  std::string hours = "8";
  std::string shards = "1";
  std::string round_seconds = "600";
};
int overnight_command(const OvernightArguments& arguments);

int bench_command(const CommonOptions& common);

}  // namespace monoref
