#include "fuzz/chain.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <set>

namespace monoref {
namespace {

/// The tensor of the chain that a stage's input or output is, or a part of it.
Tensor seen_by_stage(const ChainRead& read, const Tensor& tensor) {
  return Tensor::alias(tensor, read.layout.value_or(tensor.layout()), read.offset);
}

/// The case that a link's stage gets. `lookup(name)` gives tensors of the chain.
template <class Lookup>
Case case_of(const ChainLink& link, const Case& chain, Lookup lookup) {
  Case item;
  item.stage = link.stage;
  item.contract = chain.contract;
  item.scalars = link.scalars;
  for (const ChainRead& read : link.reads) {
    const Tensor& tensor = lookup(read.tensor);
    try {
      item.inputs.push_back({read.name, seen_by_stage(read, tensor)});
    } catch (const Refusal& refusal) {
      refuse("{}: {} of link {} ({}) is no part of {}: {}", chain.stage, read.name, link.name,
             link.stage, read.tensor, refusal.what());
    }
  }
  return item;
}

const ChainWrite& write_of(const ChainLink& link, std::string_view output) {
  const auto found = std::find_if(link.writes.begin(), link.writes.end(),
                                  [&](const ChainWrite& write) { return write.name == output; });
  if (found == link.writes.end())
    refuse("chain: link '{}' has no place for the output '{}' of {}", link.name, output,
           link.stage);
  return *found;
}

bool updates_in_place(const ChainLink& link, std::string_view tensor) {
  return std::any_of(link.reads.begin(), link.reads.end(),
                     [&](const ChainRead& read) { return read.tensor == tensor; });
}

/// The layout of which `part` is one slice, with their number as its leading dim or in the first
/// one; `part` itself where there are none.
Layout whole_layout(const Layout& part, const ChainWrite& write) {
  if (write.parts == 0) return part;
  std::vector<std::int64_t> dims = part.dims;
  if (write.is_joined)
    dims.at(0) *= write.parts;
  else
    dims.insert(dims.begin(), write.parts);
  return Layout::dense(std::move(dims));
}

/// Something that stands for a result while only its shape is known: zeros, and in tables of ids
/// 0, 1, .. a row, which are valid and distinct.
Tensor placeholder(const OutputSpec& spec) {
  Tensor tensor(spec.type, spec.layout);
  if (spec.name != "topk_ids") return tensor;
  const auto ids = tensor.view<std::int32_t, 2>();
  for (std::int64_t row = 0; row < ids.dim(0); ++row)
    for (std::int64_t slot = 0; slot < ids.dim(1); ++slot)
      ids(row, slot) = static_cast<std::int32_t>(slot);
  return tensor;
}

std::vector<OutputSpec> outputs_of_stage(const ChainLink& link, const Case& item) {
  try {
    return find_stage(link.stage).outputs(item);
  } catch (const Refusal& refusal) {
    refuse("{} ({}): {}", link.name, link.stage, refusal.what());
  }
}

OutputSpec spec_in_chain(const OutputSpec& spec, const ChainLink& link, const ChainWrite& write,
                         const Case& chain) {
  OutputSpec whole = spec;
  whole.name = write.tensor;
  whole.layout = whole_layout(spec.layout, write);
  if (write.parts > 0 && !write.is_joined) whole.axes.insert(whole.axes.begin(), "part");
  whole.starts_as.clear();
  whole.made_by =
      link.name == link.stage ? link.name : fmt::format("{} ({})", link.name, link.stage);
  if (!spec.starts_as.empty() && !updates_in_place(link, write.tensor))
    refuse("chain: '{}' of link '{}' is updated in place, but not the tensor that it reads",
           write.name, link.name);
  if (const Tensor* input = chain.find_input(write.tensor)) {  // of which a stage may see a part
    whole.starts_as = write.tensor;
    whole.layout = input->layout();
  }
  return whole;
}

/// Without gaps, whatever the order of its dims.
bool is_compact(const Layout& layout) {
  return layout.extents.size() <= 1 && layout.stored() == layout.elements();
}

/// Notes that a link writes `layout` to an output, which is as large as its largest write.
void note_write(std::vector<OutputSpec>& specs, OutputSpec whole) {
  const auto known = std::find_if(specs.begin(), specs.end(),
                                  [&](const OutputSpec& spec) { return spec.name == whole.name; });
  if (known == specs.end()) {
    specs.push_back(std::move(whole));
  } else if (known->layout != whole.layout) {
    if (!is_compact(known->layout) || !is_compact(whole.layout) || !known->starts_as.empty())
      refuse("chain: '{}' is written in two layouts", whole.name);
    if (whole.layout.elements() > known->layout.elements()) known->layout = whole.layout;
  }
}

/// What a link's stage gets while only shapes are known: inputs of the chain, and placeholders for
/// what earlier links write.
class Shapes {
 public:
  explicit Shapes(const Case& chain) : chain_(chain) {}

  Case case_of(const ChainLink& link) const {
    return monoref::case_of(link, chain_, [&](const std::string& name) -> const Tensor& {
      const auto found = written_.find(name);
      return found == written_.end() ? chain_.input(name) : found->second;
    });
  }

  /// Takes note of what a link writes.
  void write(const ChainLink& link, const Case& item, const std::vector<OutputSpec>& specs) {
    Outputs own;
    for (const OutputSpec& spec : specs) own.push_back({spec.name, placeholder(spec)});
    if (link.is_checked) find_stage(link.stage).reference(item, own);
    for (NamedTensor& output : own) {
      const ChainWrite& write = write_of(link, output.name);
      if (updates_in_place(link, write.tensor)) continue;
      const Layout layout = whole_layout(output.tensor.layout(), write);
      const auto found = written_.find(write.tensor);
      if (write.parts > 0 && found != written_.end() && found->second.layout() == layout) continue;
      written_.insert_or_assign(write.tensor, write.parts > 0 ? Tensor(output.tensor.type(), layout)
                                                              : std::move(output.tensor));
    }
  }

 private:
  const Case& chain_;
  std::map<std::string, Tensor, std::less<>> written_;
};

std::vector<OutputSpec> chain_outputs(const Case& chain, const std::vector<ChainLink>& links) {
  std::vector<OutputSpec> specs;
  Shapes shapes(chain);
  for (const ChainLink& link : links) {
    const Case item = shapes.case_of(link);
    const std::vector<OutputSpec> own = outputs_of_stage(link, item);
    for (const OutputSpec& spec : own)
      note_write(specs, spec_in_chain(spec, link, write_of(link, spec.name), chain));
    shapes.write(link, item, own);
  }
  return specs;
}

std::int64_t offset_of(const ChainWrite& write, const Layout& part) {
  return write.part * part.elements();
}

void chain_reference(const Case& chain, const std::vector<ChainLink>& links, Outputs& outputs) {
  // Of a buffer that is reused, what the last link made of it.
  std::map<std::string, Tensor, std::less<>> written;
  const auto lookup = [&](const std::string& name) -> const Tensor& {
    if (const auto found = written.find(name); found != written.end()) return found->second;
    for (const NamedTensor& item : outputs)
      if (item.name == name) return item.tensor;
    return chain.input(name);
  };
  for (const ChainLink& link : links) {
    const Case item = case_of(link, chain, lookup);
    Outputs own;
    for (const OutputSpec& spec : outputs_of_stage(link, item)) {
      const ChainWrite& write = write_of(link, spec.name);
      const Tensor& whole = output(outputs, write.tensor);
      own.push_back({spec.name, Tensor::alias(whole, spec.layout, offset_of(write, spec.layout))});
      if (!updates_in_place(link, write.tensor))
        written.insert_or_assign(write.tensor,
                                 Tensor::alias(whole, whole_layout(spec.layout, write), 0));
    }
    find_stage(link.stage).reference(item, own);
  }
}

/// Launches ask shapes alone of a case, so that placeholders do. `ranks`: of the chain, 0 for none.
void chain_launch(const Case& chain, const std::vector<ChainLink>& links, std::int64_t ranks,
                  const Launcher& launcher) {
  Shapes shapes(chain);
  const auto buffer_of = [&](const std::string& tensor) {
    const std::string as_output = "out." + tensor;
    return launcher.has(as_output) ? as_output : tensor;
  };
  for (const ChainLink& link : links) {
    const Case item = shapes.case_of(link);
    std::vector<Launcher::Renamed> names;
    for (const ChainRead& read : link.reads)
      names.push_back({read.name, buffer_of(read.tensor), read.offset});
    const std::vector<OutputSpec> own = outputs_of_stage(link, item);
    for (const OutputSpec& spec : own) {
      const ChainWrite& write = write_of(link, spec.name);
      names.push_back({"out." + spec.name, buffer_of(write.tensor), offset_of(write, spec.layout)});
    }
    shapes.write(link, item, own);
    const Launcher there = link.rank < 0 ? launcher : launcher.on_rank(link.rank, ranks);
    launch_stage(find_stage(link.stage), item, there.renamed(names));
  }
}

/// Who uses what of the chain's buffers: a link's rank what the link reads and writes, and a stage
/// of ranks what it says itself.
class ChainShares {
 public:
  ChainShares(const Case& chain, const std::vector<ChainLink>& links) : shapes_(chain) {
    for (const ChainLink& link : links)
      for (const ChainWrite& write : link.writes) written_.insert(write.tensor);
    for (const ChainLink& link : links) add(link);
  }
  std::vector<RankShare> take() { return std::move(shares_); }

 private:
  void add(const ChainLink& link) {
    const Stage& stage = find_stage(link.stage);
    const Case item = shapes_.case_of(link);
    const std::vector<OutputSpec> own = outputs_of_stage(link, item);
    if (link.rank < 0 && stage.shares) {
      for (RankShare& share : stage.shares(item)) add_renamed(link, own, std::move(share));
    } else {
      for (const ChainRead& read : link.reads) add_read(link, read);
      for (const OutputSpec& spec : own) {
        const ChainWrite& write = write_of(link, spec.name);
        shares_.push_back({buffer_of(write.tensor), link.rank, true, offset_of(write, spec.layout),
                           write.parts == 0 ? RankShare::kWhole : spec.layout.elements()});
      }
    }
    shapes_.write(link, item, own);
  }

  void add_read(const ChainLink& link, const ChainRead& read) {
    const bool is_part = read.layout && read.layout->extents.size() == 1;
    shares_.push_back({buffer_of(read.tensor), link.rank, false, is_part ? read.offset : 0,
                       is_part ? read.layout->stored() : RankShare::kWhole});
  }

  /// A share of the link's stage, as one of the chain.
  void add_renamed(const ChainLink& link, const std::vector<OutputSpec>& own, RankShare share) {
    constexpr std::string_view kOut = "out.";
    if (share.buffer.starts_with(kOut)) {
      const std::string name = share.buffer.substr(kOut.size());
      const auto spec = std::find_if(own.begin(), own.end(),
                                     [&](const OutputSpec& known) { return known.name == name; });
      if (spec == own.end()) return;
      const ChainWrite& write = write_of(link, name);
      share.buffer = buffer_of(write.tensor);
      share.offset += offset_of(write, spec->layout);
    } else {
      for (const ChainRead& read : link.reads)
        if (read.name == share.buffer) {
          share.buffer = buffer_of(read.tensor);
          share.offset += read.offset;
          break;
        }
    }
    shares_.push_back(std::move(share));
  }

  std::string buffer_of(const std::string& tensor) const {
    return written_.contains(tensor) ? "out." + tensor : tensor;
  }

  Shapes shapes_;
  std::set<std::string> written_;
  std::vector<RankShare> shares_;
};

/// Gives each second write of a tensor, or of a part of one, a name of its own.
std::vector<ChainLink> with_own_names(const Case& chain, std::vector<ChainLink> links) {
  std::map<std::string, std::string> current;
  std::map<std::string, std::set<std::int64_t>> parts_written;
  for (ChainLink& link : links) {
    const ChainLink original = link;
    for (ChainRead& read : link.reads)
      if (const auto found = current.find(read.tensor); found != current.end())
        read.tensor = found->second;
    for (ChainWrite& write : link.writes) {
      if (updates_in_place(original, write.tensor)) continue;
      auto& parts = parts_written[write.tensor];
      const bool holds_input =
          parts.empty() && !current.contains(write.tensor) && chain.find_input(write.tensor);
      if (holds_input || parts.contains(write.part)) {
        parts.clear();
        current[write.tensor] = fmt::format("{}@{}", write.tensor, original.name);
      }
      parts.insert(write.part);
      if (const auto found = current.find(write.tensor); found != current.end())
        write.tensor = found->second;
    }
  }
  return links;
}

bool nothing_planted(std::string_view) {
  return false;
}

}  // namespace

std::vector<const Stage*> link_stages(const Stage& chain) {
  const Case simplest =
      build_case(chain, Params(chain.dimensions), Contract::parse(chain.contracts.front()), 0);
  std::vector<const Stage*> stages;
  for (const ChainLink& link : links_of(chain, simplest)) stages.push_back(&find_stage(link.stage));
  return stages;
}

void as_chain(Stage& stage) {
  const auto links = stage.chain;
  // The registry knows the links' stages, but not before it is complete.
  struct Links {
    std::once_flag once;
    std::vector<const Stage*> stages;
  };
  stage.has_kernels = [name = stage.name,
                       known = std::make_shared<Links>()](const Contract& wanted) {
    std::call_once(known->once, [&] { known->stages = link_stages(find_stage(name)); });
    return std::all_of(known->stages.begin(), known->stages.end(), [&](const Stage* link) {
      return !link->has_kernels || link->has_kernels(wanted);
    });
  };
  stage.outputs = [links](const Case& item) {
    return chain_outputs(item, links(item, nothing_planted));
  };
  stage.reference = [links](const Case& item, Outputs& outputs) {
    chain_reference(item, links(item, nothing_planted), outputs);
  };
  stage.launch = [links, ranks = stage.ranks](const Case& item, const Launcher& launcher) {
    chain_launch(item, links(item, device::is_active_fault), ranks ? ranks(item) : 0, launcher);
  };
  if (stage.ranks)
    stage.shares = [links](const Case& item) {
      return ChainShares(item, links(item, device::is_active_fault)).take();
    };
}

Stage with_own_buffers(const Stage& chain) {
  Stage stage = chain;
  stage.chain = [links = chain.chain](const Case& item, const Planted& planted) {
    return with_own_names(item, links(item, planted));
  };
  as_chain(stage);
  return stage;
}

std::vector<ChainLink> links_of(const Stage& chain, const Case& item) {
  return chain.chain(item, nothing_planted);
}

const ChainLink& writer_of(const std::vector<ChainLink>& links, std::string_view tensor) {
  for (auto link = links.rbegin(); link != links.rend(); ++link)
    for (const ChainWrite& write : link->writes)
      if (write.tensor == tensor) return *link;
  refuse("chain: no link writes '{}'", tensor);
}

}  // namespace monoref
