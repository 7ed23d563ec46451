// Files of cases, format `monoref-cases/1`: golden cases, findings, reproductions.
//
//   /                 format, schema, count, sha256
//   /case_000000      title, stage, contract, seed, generator_version, line, origin, source,
//                     scalars, inputs, expected (the names of each, in order), sha256
//     scalars         one attribute a scalar, its kind kept, sha256
//     inputs          one dataset a tensor
//     expected        one dataset an output
//     specified       one dataset an output that has a mask
//
// A dataset has the attributes dtype, dims, strides, extents (offset and count of each run of
// storage, flat) and sha256. Its shape is the tensor's if that is dense; else it is the list of the
// stored elements, run after run. Groups that would be empty are left out.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "golden/case.hpp"
#include "golden/disk.hpp"
#include "golden/isolation.hpp"
#include "golden/tree.hpp"

namespace monoref {

inline constexpr std::string_view kCaseFormat = "monoref-cases/1";

/// Reads a file of cases; they come in the order in which they were written. Throws FileError.
/// Reading happens in a process of its own, see golden/isolation.hpp.
std::vector<Case> read_cases(const std::filesystem::path& path, const ReadLimits& limits = {});

/// Replaces the file at `path` as one step, see `replace_file`. Throws FileError for cases that
/// could not be read back: a title used twice, a name that is not 1 to 128 of [A-Za-z0-9_.+-], a
/// text with a zero byte or beyond the limit, a tensor beyond the limits. Equal cases give equal
/// bytes with one version of HDF5 and zlib, and equal datasets with any. `observer` is for tests.
void write_cases(const std::filesystem::path& path, std::span<const Case> cases,
                 const WriteObserver& observer = {});

/// The meaning of a tree in this format, and the tree of cases. Both throw ContentError.
std::vector<Case> cases_from_tree(const TreeGroup& root);
TreeGroup tree_from_cases(std::span<const Case> cases);

}  // namespace monoref
