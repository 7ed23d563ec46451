// Cases, tensors and files for the tests of golden/, all made from numbers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "golden/case.hpp"
#include "golden/recording.hpp"

namespace monoref::testing {

/// A folder that is removed, with what is in it, when it goes.
class TemporaryFolder {
 public:
  TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder();
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

/// The `counter`-th of a sequence of random numbers: a pure function of both.
std::uint64_t random_bits(std::uint64_t seed, std::uint64_t counter);

/// A tensor whose stored bytes are all random.
Tensor random_tensor(DType type, const Layout& layout, std::uint64_t seed);

/// All element types.
std::vector<DType> all_types();

/// A layout of rows far apart in one virtual range, with room for three rows of eight elements.
Layout sparse_layout();

/// A case that uses every feature of the format: scalars of each kind, inputs dense, padded,
/// sparse, empty and of rank 0, small and large, an output with and one without a mask.
Case full_case(const std::string& title, std::uint64_t seed);

/// Two small cases whose file has only a few kilobytes.
std::vector<Case> small_cases();

/// Writes the bytes as they are, without the care of `replace_file`.
void put_file(const std::filesystem::path& path, std::span<const std::byte> bytes);
void put_text(const std::filesystem::path& path, const std::string& text);

/// A recording of two cases as h5py would write it: earliest format of the library, text of
/// variable length, booleans as enumerations, one dataset compressed.
void write_small_recording(const std::filesystem::path& path);
/// What is in that file.
Recording small_recording();

}  // namespace monoref::testing
