// A night of fuzzing on one machine: a process a shard, in rounds, with a memory of what is done.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace monoref {

struct OvernightOptions {
  std::filesystem::path folder;
  double hours = 8;
  std::uint64_t shards = 1;
  double round_seconds = 600;
  /// What runs a round: the first words of its command line, to which those of `fuzz` are added.
  std::vector<std::string> program;
  std::uint64_t most_rounds = UINT64_MAX;  ///< a shard, of those in the folder already too
};

/// Fuzzes until the hours are over and returns the exit code. In the folder:
///
///   state.json    the seed of the night, and each finished round with its exit code and counts;
///                 replaced as one step after every round
///   shard-I.log   what the rounds of a shard printed
///   corpus/       findings, which every round replays first
///
/// Round r of shard i is `fuzz --seed SEED+r-1 --shard i/n`. The seed is drawn for a new folder and
/// kept. A folder that has rounds already is gone on with, behind the last of each shard that was
/// finished. A round whose process was killed, or that judged no case, is done again, twice at
/// most; a shard of which three rounds in a row were lost so is given up.
///
/// 1 if a round found something or its process was killed; 2 if one judged nothing, met bad input
/// or its state or its words could not be written; 3 if the backend is not there; 75 after SIGINT
/// or SIGTERM, unless 1. Either signal ends all processes within three seconds; the rounds under
/// way then are not counted and done again at the next start. The summary is printed in every case.
///
/// Refuses a folder in which another night is at work, that was begun with another number of
/// shards, or whose state is damaged. Throws std::exception where nothing can be started or kept.
int run_overnight(const OvernightOptions& options);

}  // namespace monoref
