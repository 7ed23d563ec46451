#include "fuzz/overnight.hpp"

#include <charconv>

#include "fuzz/commands/commands.hpp"
#include "reference/core/error.hpp"

namespace monoref {
namespace {

/// A number that is written out to its end and lies in 0 < x <= most.
double positive(std::string_view what, const std::string& text, double most) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, value);
  if (read.ec != std::errc{} || read.ptr != end || !(value > 0) || value > most)
    refuse("overnight: {} is '{}', must be a number above 0 and at most {}", what, text, most);
  return value;
}

std::uint64_t count(std::string_view what, const std::string& text, std::uint64_t most) {
  std::uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, value);
  if (read.ec != std::errc{} || read.ptr != end || value == 0 || value > most)
    refuse("overnight: {} is '{}', must be a whole number from 1 to {}", what, text, most);
  return value;
}

}  // namespace

int overnight_command(const OvernightArguments& arguments) {
  constexpr double kMostHours = 10'000;
  constexpr double kMostRoundSeconds = 100'000;
  constexpr std::uint64_t kMostShards = 1024;
  OvernightOptions options{.folder = arguments.folder};
  options.hours = positive("HOURS", arguments.hours, kMostHours);
  options.shards = count("SHARDS", arguments.shards, kMostShards);
  options.round_seconds = positive("--round-seconds", arguments.round_seconds, kMostRoundSeconds);
  options.program = {std::filesystem::read_symlink("/proc/self/exe").string()};
  return run_overnight(options);
}

}  // namespace monoref
