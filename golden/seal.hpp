// Digests over trees: every dataset and every group of our own files carries one.
#pragma once

#include "golden/tree.hpp"

namespace monoref {

/// Gives every dataset and group of a tree the attribute `sha256`, 64 hexadecimal digits over
///   a dataset: its stored type, its dims, its other attributes and its bytes;
///   a group: its other attributes, and the name and `sha256` of each dataset, then of each group.
/// So the root's covers the whole file. Attributes are taken in ascending order of their names,
/// into which they are sorted here; the text that is digested is spelled out in seal.cpp.
void seal(TreeGroup& root);

/// Recomputes every digest; throws ContentError for the innermost place where one is missing or
/// differs.
void verify_seals(const TreeGroup& root);

}  // namespace monoref
