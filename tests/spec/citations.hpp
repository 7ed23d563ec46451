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
///   mono-decode section 3.5; upstream-semantics sections 3.3 to 3.5; matrix-cores section 4;
///   granted section 3.4; each with any number of sections, "step 5", "items 3 to 6" or a quotation
///   of the section after a comma, and a remark in brackets after each sparse-pa:
///   insert_index_cache           items of a seed; a seed's name alone is all of it recordings:
///   indexer_metadata            or "the recording gpu_functions" bug cases P10, P11 and S12 to S17
///   and a code alone
/// A section that no document is named for is a finding, unless `home` names the document that the
/// text is part of. So is a name that is nearly a document's.
Citations check_citations(const Prose& prose, const Library& library, std::string_view home = {});

}  // namespace monoref::spec
