// Chains: stages one after the other, each reading what those before it left.
//
// A chain is data too: a list of links. Its reference is the stages' references, its launch the
// stages' launches on the chain's own buffers, and its outputs are everything that the links write,
// in the order of writing. So the first output that differs names the stage to look at.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fuzz/stage.hpp"

namespace monoref {

/// A tensor of the chain under the name that a stage has for it.
struct ChainRead {
  std::string name;    ///< the stage's input
  std::string tensor;  ///< what an earlier link wrote, or else an input of the chain's case
  /// What of the tensor the stage sees; empty: all of it as it is.
  std::optional<Layout> layout = std::nullopt;
  std::int64_t offset = 0;  ///< elements of the tensor before it
};

struct ChainWrite {
  std::string name;    ///< the stage's output
  std::string tensor;  ///< the chain's; written by several links, it is one buffer that is reused
  /// The stage's output is one of so many equal parts of the tensor, its leading dim; 0: all of it.
  std::int64_t part = 0, parts = 0;
  bool is_joined = false;  ///< the parts are rows under each other, without a dim of their own
};

/// One stage of a chain. An output that the stage updates in place has the tensor that it reads.
struct ChainLink {
  std::string name;  ///< unique in the chain
  std::string_view stage;
  std::vector<ChainRead> reads;
  std::vector<ChainWrite> writes;  ///< every output of the stage
  std::vector<NamedScalar> scalars;
  /// Later stages check what it writes, not only the shape: where only shapes are asked for, it is
  /// computed all the same. It may read inputs of the chain alone.
  bool is_checked = false;
  /// The rank that it belongs to; -1: a stage of ranks, or one that each device does for itself.
  std::int64_t rank = -1;
};

/// The stages of the links of a chain's simplest case.
std::vector<const Stage*> link_stages(const Stage& chain);

/// Makes outputs, reference and launch from `stage.chain`, and with `stage.ranks` also the shares.
/// It has kernels for a contract if all of its links have.
void as_chain(Stage& stage);

/// The same stage with every write that would reuse a buffer going to one of its own, so that all
/// that was computed can be looked at. What is updated in place stays one tensor.
Stage with_own_buffers(const Stage& chain);

/// The links of a case as they should be.
std::vector<ChainLink> links_of(const Stage& chain, const Case& item);

/// The link that wrote a tensor last.
const ChainLink& writer_of(const std::vector<ChainLink>& links, std::string_view tensor);

}  // namespace monoref
