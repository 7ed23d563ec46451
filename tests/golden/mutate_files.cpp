// Reads files with planted damage. Of every damaged file one thing is required: an answer. A file
// of cases must give the identical cases or a FileError; a recording, which has no digests, a
// well-formed recording or a FileError. A crash, a hang or a sanitizer's report of our own code
// fails the run; a crash of the HDF5 library, in the process made for it, does not.
//
//   mutate_files COUNT [SEED]
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>

#include "golden/any_file.hpp"
#include "golden/compare.hpp"
#include "golden/disk.hpp"
#include "golden/seal.hpp"
#include "tests/golden/samples.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>

/// Reports name modules, not lines: looking up lines takes longer than a reading may (run again
/// with ASAN_OPTIONS=symbolize=1 to see them). A small quarantine keeps the process small to fork.
extern "C" const char* __asan_default_options() {
  return "symbolize=0:quarantine_size_mb=4";
}
#endif

namespace monoref::testing {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::byte>;

/// Random choices of one mutant, counted, so that a mutant is a function of seed and number.
class Choices {
 public:
  Choices(std::uint64_t seed, std::uint64_t number) : seed_(random_bits(seed, number)) {}
  std::uint64_t bits() { return random_bits(seed_, counter_++); }
  std::size_t below(std::size_t limit) { return static_cast<std::size_t>(bits() % limit); }

 private:
  std::uint64_t seed_;
  std::uint64_t counter_ = 0;
};

/// Numbers that break arithmetic on sizes and addresses.
std::uint64_t nasty_number(Choices& choices) {
  constexpr std::uint64_t kNumbers[] = {0,
                                        1,
                                        7,
                                        0x7f,
                                        0xff,
                                        0xffff,
                                        0x7fffffff,
                                        0xffffffff,
                                        0x100000000,
                                        0x7fffffffffffffff,
                                        0xfffffffffffffff0,
                                        0xffffffffffffffff};
  return kNumbers[choices.below(std::size(kNumbers))];
}

void put_number(Bytes& file, std::size_t at, std::uint64_t value, std::size_t width) {
  for (std::size_t i = 0; i < width && at + i < file.size(); ++i)
    file[at + i] = static_cast<std::byte>(value >> (8 * i) & 0xff);
}

void flip_bits(Bytes& file, Choices& choices) {
  for (std::size_t n = 1 + choices.below(4); n > 0; --n)
    file[choices.below(file.size())] ^= static_cast<std::byte>(1u << choices.below(8));
}

void overwrite_run(Bytes& file, Choices& choices) {
  const std::size_t at = choices.below(file.size());
  const std::size_t size = std::min(1 + choices.below(64), file.size() - at);
  const std::size_t kind = choices.below(3);
  for (std::size_t i = 0; i < size; ++i)
    file[at + i] = static_cast<std::byte>(kind == 0 ? 0 : kind == 1 ? 0xff : choices.bits() & 0xff);
}

void truncate(Bytes& file, Choices& choices) {
  file.resize(choices.below(file.size()));
}

void extend(Bytes& file, Choices& choices) {
  for (std::size_t n = 1 + choices.below(600); n > 0; --n)
    file.push_back(static_cast<std::byte>(choices.bits() & 0xff));
}

void swap_ranges(Bytes& file, Choices& choices) {
  const std::size_t size = 1 + choices.below(file.size() / 4);
  const std::size_t a = choices.below(file.size() - 2 * size);
  const std::size_t b = a + size + choices.below(file.size() - a - 2 * size + 1);
  std::swap_ranges(file.begin() + static_cast<std::ptrdiff_t>(a),
                   file.begin() + static_cast<std::ptrdiff_t>(a + size),
                   file.begin() + static_cast<std::ptrdiff_t>(b));
}

/// All places where one of the words occurs.
std::vector<std::size_t> places_of(const Bytes& file, std::span<const std::string_view> words) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  std::vector<std::size_t> places;
  for (const std::string_view word : words)
    for (std::size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1))
      places.push_back(at);
  return places;
}

/// A number in the superblock or shortly behind the signature of one of the library's structures.
void change_header_field(Bytes& file, Choices& choices) {
  constexpr std::string_view kSignatures[] = {"\x89HDF", "OHDR", "OCHK", "TREE", "SNOD", "HEAP",
                                              "GCOL",    "FRHP", "FHDB", "BTHD", "BTLF"};
  const std::vector<std::size_t> places = places_of(file, kSignatures);
  const std::size_t at = places[choices.below(places.size())] + choices.below(96);
  put_number(file, at, nasty_number(choices), std::size_t{1} << choices.below(4));
}

/// Old object headers have no signature, but the names and texts of attributes lie in them.
void change_near_text(Bytes& file, Choices& choices) {
  constexpr std::string_view kWords[] = {"format", "dtype",  "case_",    "stage",
                                         "scale",  "int32",  "seed",     "extents",
                                         "FALSE",  "sha256", "seq_lens", "rows"};
  const std::vector<std::size_t> places = places_of(file, kWords);
  const std::size_t place = places[choices.below(places.size())];
  if (choices.below(2) == 0) {
    file[std::min(place + choices.below(24), file.size() - 1)] =
        static_cast<std::byte>(choices.bits() & 0xff);
  } else {
    const std::size_t back = choices.below(40);
    put_number(file, place > back ? place - back : 0, nasty_number(choices),
               std::size_t{1} << choices.below(4));
  }
}

using Mutation = void (*)(Bytes&, Choices&);

struct NamedMutation {
  std::string_view name;
  Mutation apply;
};

constexpr NamedMutation kMutations[] = {{"bits", flip_bits},
                                        {"run", overwrite_run},
                                        {"truncated", truncate},
                                        {"extended", extend},
                                        {"swapped", swap_ranges},
                                        {"field", change_header_field},
                                        {"field", change_header_field},
                                        {"text", change_near_text},
                                        {"text", change_near_text}};

// ---- trees -------------------------------------------------------------------------------------

/// Every group of a tree, the root first.
void collect(TreeGroup& group, std::vector<TreeGroup*>& groups) {
  groups.push_back(&group);
  for (TreeGroup& below : group.groups) collect(below, groups);
}

void change_value(AttributeValue& value, Choices& choices) {
  if (auto* list = std::get_if<std::vector<std::int64_t>>(&value); list && choices.below(4) != 0) {
    if (list->empty() || choices.below(3) == 0)
      list->push_back(static_cast<std::int64_t>(nasty_number(choices)));
    else if (choices.below(3) == 0)
      list->pop_back();
    else
      (*list)[choices.below(list->size())] = static_cast<std::int64_t>(nasty_number(choices));
  } else if (auto* text = std::get_if<std::string>(&value); text && choices.below(4) != 0) {
    if (text->empty() || choices.below(3) == 0)
      text->insert(choices.below(text->size() + 1), 1, static_cast<char>(choices.bits() & 0xff));
    else
      (*text)[choices.below(text->size())] = static_cast<char>(choices.bits() & 0xff);
  } else {
    const std::uint64_t number = nasty_number(choices);
    const AttributeValue values[] = {static_cast<std::int64_t>(number),
                                     number,
                                     static_cast<double>(number),
                                     number != 0,
                                     std::string("int64"),
                                     std::vector{static_cast<std::int64_t>(number)}};
    value = values[choices.below(std::size(values))];
  }
}

void change_attributes(std::vector<TreeAttribute>& attributes, Choices& choices) {
  const std::size_t at = choices.below(attributes.size() + 1);
  if (at == attributes.size()) {
    attributes.push_back({"unheard", std::int64_t{1}});
  } else if (choices.below(8) == 0) {
    attributes.erase(attributes.begin() + static_cast<std::ptrdiff_t>(at));
  } else {
    change_value(attributes[at].value, choices);
  }
}

void change_dataset(TreeDataset& dataset, Choices& choices) {
  switch (choices.below(5)) {
    case 0:
      dataset.dims.push_back(static_cast<std::int64_t>(nasty_number(choices)));
      break;
    case 1:
      if (!dataset.dims.empty())
        dataset.dims[choices.below(dataset.dims.size())] =
            static_cast<std::int64_t>(nasty_number(choices));
      break;
    case 2:
      dataset.bytes.resize(choices.below(dataset.bytes.size() + 9));
      break;
    case 3:
      dataset.type = static_cast<StoredType>(choices.below(6));
      break;
    default:
      change_attributes(dataset.attributes, choices);
  }
}

void change_tree(TreeGroup& root, Choices& choices) {
  std::vector<TreeGroup*> groups;
  collect(root, groups);
  TreeGroup& group = *groups[choices.below(groups.size())];
  const std::size_t kind = choices.below(10);
  if (kind < 6 && !group.datasets.empty()) {
    change_dataset(group.datasets[choices.below(group.datasets.size())], choices);
  } else if (kind == 7 && !group.datasets.empty()) {
    group.datasets.push_back(group.datasets.back());
  } else if (kind == 8 && !group.groups.empty()) {
    group.groups.pop_back();
  } else if (kind == 9) {
    group.name += choices.below(2) == 0 ? "x" : "";
    if (!group.groups.empty()) group.groups.push_back(group.groups.front());
  } else {
    change_attributes(group.attributes, choices);
  }
}

// ---- the campaign ------------------------------------------------------------------------------

struct Campaign {
  TemporaryFolder folder;
  std::vector<Case> cases = small_cases();
  Recording recording = small_recording();
  Bytes case_bytes;
  Bytes recording_bytes;
  std::map<std::string, std::size_t> outcomes;
  std::size_t failures = 0;

  Campaign() {
    write_cases(folder / "cases.h5", cases);
    case_bytes = read_whole_file(folder / "cases.h5");
    write_small_recording(folder / "recording.h5");
    recording_bytes = read_whole_file(folder / "recording.h5");
    require_undamaged();
  }

  /// Without damage both are read as what they are; else every error below would mean nothing.
  void require_undamaged() const {
    const std::string own = cases_difference(read_cases(folder / "cases.h5"));
    const std::string other =
        recording_difference(recording, read_recording(folder / "recording.h5"));
    if (!own.empty() || !other.empty())
      throw std::logic_error("an undamaged file is read as another: " + own + " " + other);
  }

  void fail(std::uint64_t number, const std::string& what) {
    ++failures;
    fmt::print("mutant {}: {}\n", number, what);
  }

  std::string cases_difference(const std::vector<Case>& read) const {
    if (read.size() != cases.size()) return "the number of cases";
    for (std::size_t i = 0; i < cases.size(); ++i)
      if (auto difference = case_difference(cases[i], read[i]); !difference.empty())
        return difference;
    return {};
  }

  /// One damaged file through the public entry.
  void file_mutant(std::uint64_t number, std::uint64_t seed);
  /// One damaged tree through the part that gives trees their meaning, which needs no file.
  void tree_mutant(std::uint64_t number, std::uint64_t seed);
  /// A damaged answer of the process that reads files, as one with a damaged memory may give.
  void answer_mutant(std::uint64_t number, std::uint64_t seed);
  void check_reports(std::uint64_t number);
};

std::string classify(const std::string& message) {
  if (message.find("the HDF5 library crashed") != message.npos) return "FileError, HDF5 crashed";
  if (message.find("the HDF5 library failed") != message.npos) return "FileError, HDF5 aborted";
  if (message.find("the HDF5 library took") != message.npos) return "FileError, HDF5 hung";
  return "FileError";
}

void Campaign::file_mutant(std::uint64_t number, std::uint64_t seed) {
  Choices choices(seed, number);
  const bool own = number % 2 == 0;
  Bytes bytes = own ? case_bytes : recording_bytes;
  const NamedMutation& mutation = kMutations[choices.below(std::size(kMutations))];
  mutation.apply(bytes, choices);
  const fs::path path = folder / "mutant.h5";
  put_file(path, bytes);
  const std::string kind = own ? "cases" : "recording";
  ReadLimits limits;
  limits.cpu_seconds = 1;
  try {
    const AnyFile read = read_any(path, limits);
    if (const auto* found = std::get_if<std::vector<Case>>(&read)) {
      const std::string difference = own ? cases_difference(*found) : "it became a file of cases";
      if (!difference.empty()) fail(number, mutation.name.data() + (": " + difference));
      ++outcomes[kind + ": identical"];
    } else {
      const std::string difference = recording_difference(recording, std::get<Recording>(read));
      if (own) fail(number, "a file of cases became a recording");
      ++outcomes[kind + (difference.empty() ? ": identical" : ": changed but well formed")];
    }
  } catch (const FileError& error) {
    const std::string message = error.what();
    if (message.find(path.string()) == message.npos) fail(number, "no file in: " + message);
    ++outcomes[kind + ": " + classify(message)];
  }
  check_reports(number);
}

void Campaign::tree_mutant(std::uint64_t number, std::uint64_t seed) {
  Choices choices(~seed, number);
  TreeGroup tree = tree_from_cases(cases);
  change_tree(tree, choices);
  try {
    const std::string difference = cases_difference(cases_from_tree(tree));
    if (!difference.empty()) fail(number, "an undetected change of " + difference);
    ++outcomes["tree: identical"];
  } catch (const ContentError&) {
    ++outcomes["tree: ContentError"];
  }
  seal(tree);  // now as if written so: it may be accepted, and must then be a value like any other
  try {
    const std::vector<Case> read = cases_from_tree(tree);
    const std::vector<Case> again = cases_from_tree(tree_from_cases(read));
    for (std::size_t i = 0; i < read.size(); ++i)
      if (const auto difference = case_difference(read[i], again[i]); !difference.empty())
        fail(number, "what was read is written as something else: " + difference);
    ++outcomes["sealed tree: accepted"];
  } catch (const ContentError&) {
    ++outcomes["sealed tree: ContentError"];
  }
}

void Campaign::answer_mutant(std::uint64_t number, std::uint64_t seed) {
  Choices choices(seed + 1, ~number);
  const TreeGroup tree = tree_from_cases(cases);
  Bytes packed = pack_tree(tree);
  constexpr NamedMutation kKinds[] = {{"bits", flip_bits},
                                      {"run", overwrite_run},
                                      {"truncated", truncate},
                                      {"extended", extend},
                                      {"swapped", swap_ranges}};
  const std::size_t kind = choices.below(std::size(kKinds) + 2);
  if (kind < std::size(kKinds))
    kKinds[kind].apply(packed, choices);
  else  // the lengths in this form are 64-bit numbers anywhere
    put_number(packed, choices.below(packed.size()), nasty_number(choices), 8);
  const Bytes exact(packed.begin(), packed.end());  // reading behind it must not hit spare capacity
  try {
    const std::string difference = cases_difference(cases_from_tree(unpack_tree(exact)));
    if (!difference.empty()) fail(number, "an undetected change in an answer of " + difference);
    ++outcomes["answer: identical"];
  } catch (const ContentError&) {
    ++outcomes["answer: ContentError"];
  }
}

#if defined(__SANITIZE_ADDRESS__)
/// Where reports go, and the process whose death ends the run.
fs::path report_path;
pid_t campaign_process = 0;

/// Reports go to files so that those of reading processes can be judged; one of this process is
/// shown.
void show_own_report() {
  if (getpid() != campaign_process) return;
  std::ifstream file(fmt::format("{}.{}", report_path.string(), getpid()));
  std::fputs(std::string((std::istreambuf_iterator<char>(file)), {}).c_str(), stderr);
}

void direct_reports(const fs::path& path) {
  report_path = path;
  campaign_process = getpid();
  __sanitizer_set_report_path(report_path.c_str());
  __sanitizer_set_death_callback(show_own_report);
}

/// True if the fault lies in code of the HDF5 library: the first frame of the report that is
/// neither the sanitizer's nor the C library's is in it.
bool is_library_fault(const std::string& report) {
  if (report.find("runtime error:") != report.npos) return false;  // only our code has such checks
  std::size_t at = 0;
  while ((at = report.find("    #", at)) != report.npos) {
    const std::string line = report.substr(at, report.find('\n', at) - at);
    at += 5;
    if (line.find("libasan") != line.npos || line.find("libsanitizer") != line.npos ||
        line.find("libc.so") != line.npos)
      continue;
    return line.find("libhdf5") != line.npos || line.find("libz.so") != line.npos;
  }
  return false;
}
#endif

void Campaign::check_reports([[maybe_unused]] std::uint64_t number) {
#if defined(__SANITIZE_ADDRESS__)
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    if (!entry.path().filename().string().starts_with("report")) continue;
    std::ifstream file(entry.path());
    const std::string report((std::istreambuf_iterator<char>(file)), {});
    if (!is_library_fault(report)) fail(number, "a sanitizer reports:\n" + report);
    ++outcomes["sanitizer: a fault inside HDF5"];
    fs::remove(entry.path());
  }
#endif
}

int run(std::uint64_t count, std::uint64_t seed) {
  Campaign campaign;
#if defined(__SANITIZE_ADDRESS__)
  direct_reports(campaign.folder / "report");
#endif
  const auto start = std::chrono::steady_clock::now();
  for (std::uint64_t number = 0; number < count; ++number) {
    campaign.file_mutant(number, seed);
    campaign.tree_mutant(number, seed);
    campaign.answer_mutant(number, seed);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  for (const auto& [outcome, times] : campaign.outcomes) fmt::print("{:>8}  {}\n", times, outcome);
  fmt::print("mutate_files: {} mutants, {} failures, {:.1f} s\n", count, campaign.failures,
             took.count());
  return campaign.failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace monoref::testing

int main(int count, char** arguments) {
  if (count < 2 || count > 3) {
    fmt::print(stderr, "usage: mutate_files COUNT [SEED]\n");
    return 2;
  }
  return monoref::testing::run(std::strtoull(arguments[1], nullptr, 10),
                               count == 3 ? std::strtoull(arguments[2], nullptr, 10) : 1);
}
