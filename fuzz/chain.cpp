#include "fuzz/chain.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace monoref {
namespace {

using Tensors = std::map<std::string, Tensor, std::less<>>;

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
  for (const ChainRead& read : link.reads)
    item.inputs.push_back({read.name, seen_by_stage(read, lookup(read.tensor))});
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

/// A whole tensor of which `part` is one of so many.
Layout whole_layout(const Layout& part, std::int64_t parts) {
  if (parts == 1) return part;
  std::vector<std::int64_t> dims{parts};
  dims.insert(dims.end(), part.dims.begin(), part.dims.end());
  return Layout::dense(std::move(dims));
}

/// Something that stands for a result while only its shape is known: zeros, and in tables of ids
/// 0, 1, .. a row, which are valid and distinct.
Tensor placeholder(const OutputSpec& spec, Layout layout) {
  Tensor tensor(spec.type, std::move(layout));
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
  whole.layout = whole_layout(spec.layout, write.parts);
  if (write.parts > 1) whole.axes.insert(whole.axes.begin(), "part");
  whole.starts_as.clear();
  whole.made_by =
      link.name == link.stage ? link.name : fmt::format("{} ({})", link.name, link.stage);
  if (!spec.starts_as.empty() && !updates_in_place(link, write.tensor))
    refuse("chain: '{}' of link '{}' is updated in place, but not the tensor that it reads",
           write.name, link.name);
  if (chain.find_input(write.tensor) != nullptr) whole.starts_as = write.tensor;
  return whole;
}

std::vector<OutputSpec> chain_outputs(const Case& chain, const std::vector<ChainLink>& links) {
  std::vector<OutputSpec> specs;
  Tensors written;
  const auto lookup = [&](const std::string& name) -> const Tensor& {
    const auto found = written.find(name);
    return found == written.end() ? chain.input(name) : found->second;
  };
  for (const ChainLink& link : links) {
    const Case item = case_of(link, chain, lookup);
    for (const OutputSpec& spec : outputs_of_stage(link, item)) {
      const ChainWrite& write = write_of(link, spec.name);
      if (written.contains(write.tensor)) continue;
      OutputSpec whole = spec_in_chain(spec, link, write, chain);
      if (whole.starts_as.empty())
        written.emplace(write.tensor, placeholder(spec, whole.layout));
      else
        written.emplace(write.tensor, Tensor::alias(chain.input(write.tensor), whole.layout, 0));
      specs.push_back(std::move(whole));
    }
  }
  return specs;
}

std::int64_t offset_of(const ChainWrite& write, const Layout& part) {
  return write.parts == 1 ? 0 : write.part * part.elements();
}

void chain_reference(const Case& chain, const std::vector<ChainLink>& links, Outputs& outputs) {
  const auto lookup = [&](const std::string& name) -> const Tensor& {
    for (const NamedTensor& item : outputs)
      if (item.name == name) return item.tensor;
    return chain.input(name);
  };
  for (const ChainLink& link : links) {
    const Case item = case_of(link, chain, lookup);
    Outputs own;
    for (const OutputSpec& spec : outputs_of_stage(link, item)) {
      const ChainWrite& write = write_of(link, spec.name);
      own.push_back({spec.name, Tensor::alias(output(outputs, write.tensor), spec.layout,
                                              offset_of(write, spec.layout))});
    }
    find_stage(link.stage).reference(item, own);
  }
}

/// Launches ask shapes alone of a case, so that placeholders do.
void chain_launch(const Case& chain, const std::vector<ChainLink>& links,
                  const Launcher& launcher) {
  Tensors written;
  const auto lookup = [&](const std::string& name) -> const Tensor& {
    const auto found = written.find(name);
    return found == written.end() ? chain.input(name) : found->second;
  };
  const auto buffer_of = [&](const std::string& tensor) {
    const std::string as_output = "out." + tensor;
    return launcher.has(as_output) ? as_output : tensor;
  };
  for (const ChainLink& link : links) {
    const Case item = case_of(link, chain, lookup);
    std::vector<Launcher::Renamed> names;
    for (const ChainRead& read : link.reads)
      names.push_back({read.name, buffer_of(read.tensor), read.offset});
    for (const OutputSpec& spec : find_stage(link.stage).outputs(item)) {
      const ChainWrite& write = write_of(link, spec.name);
      names.push_back({"out." + spec.name, buffer_of(write.tensor), offset_of(write, spec.layout)});
      if (!written.contains(write.tensor) && !updates_in_place(link, write.tensor))
        written.emplace(write.tensor, placeholder(spec, whole_layout(spec.layout, write.parts)));
    }
    find_stage(link.stage).launch(item, launcher.renamed(names));
  }
}

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

}  // namespace

void as_chain(Stage& stage) {
  const auto links = stage.chain;
  stage.outputs = [links](const Case& item) { return chain_outputs(item, links(item)); };
  stage.reference = [links](const Case& item, Outputs& outputs) {
    chain_reference(item, links(item), outputs);
  };
  stage.launch = [links](const Case& item, const Launcher& launcher) {
    chain_launch(item, links(item), launcher);
  };
}

Stage with_own_buffers(const Stage& chain) {
  Stage stage = chain;
  stage.chain = [links = chain.chain](const Case& item) {
    return with_own_names(item, links(item));
  };
  as_chain(stage);
  return stage;
}

const ChainLink& writer_of(const std::vector<ChainLink>& links, std::string_view tensor) {
  for (auto link = links.rbegin(); link != links.rend(); ++link)
    for (const ChainWrite& write : link->writes)
      if (write.tensor == tensor) return *link;
  refuse("chain: no link writes '{}'", tensor);
}

}  // namespace monoref
