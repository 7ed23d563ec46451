// Follows every citation in a text to the place that it names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tests/spec/library.hpp"
#include "tests/spec/prose.hpp"

namespace monoref::spec {

struct Finding {
  int line;
  std::string message;
};

struct Citations {
  int resolved = 0;               ///< places that were named and exist
  std::vector<Finding> findings;  ///< those that do not, and what cannot be understood
};

/// Forms:
///
///   mono-decode section 3.5                upstream-semantics sections 3.3 to 3.5
///   matrix-cores section 4                 granted section 3.4
///   mono-decode section 3, step 5          with any number of sections, a remark in brackets after
///                                          each, and "items 3 to 6" or a quotation after a comma
///   sparse-pa: insert_index_cache          a seed's items; its name alone is all of it
///   recordings: indexer_metadata           or "the recording gpu_functions"
///   bug cases P10, P11 and S12 to S17      or a code alone
///
/// A section that no document is named for is a finding, unless `home` names the document that the
/// text is part of. So is a name that is nearly a document's.
Citations check_citations(const Prose& prose, const Library& library, std::string_view home = {});

/// Of code, names of tests and functions: a BugCaseP10 must be a bug case.
Citations check_names(std::string_view code, const Library& library);

}  // namespace monoref::spec
