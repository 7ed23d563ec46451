#include "fuzz/coverage.hpp"

#include <fmt/format.h>

namespace monoref {
namespace {

std::string words_line(const Dimension& dimension,
                       const std::map<std::int64_t, std::uint64_t>& counts) {
  std::string line;
  for (std::size_t i = 0; i < dimension.words.size(); ++i) {
    const auto found = counts.find(static_cast<std::int64_t>(i));
    line += fmt::format("{}{} {}", line.empty() ? "" : ", ", dimension.words[i],
                        found == counts.end() ? 0 : found->second);
  }
  return line;
}

std::string range_line(const Dimension& dimension,
                       const std::map<std::int64_t, std::uint64_t>& counts) {
  if (counts.empty()) return "never drawn";
  std::string line = fmt::format("{} values from {} to {}", counts.size(), counts.begin()->first,
                                 counts.rbegin()->first);
  std::string missing;
  for (const std::int64_t edge : dimension.edges)
    if (!counts.contains(edge)) missing += fmt::format(" {}", edge);
  if (!missing.empty()) line += fmt::format("; edges not drawn:{}", missing);
  return line;
}

}  // namespace

void Coverage::add(const Params& params) {
  for (std::size_t i = 0; i < seen_.size(); ++i) ++seen_[i][params.values()[i]];
}

void Coverage::add(const Coverage& other) {
  for (std::size_t i = 0; i < seen_.size(); ++i)
    for (const auto& [value, count] : other.seen_[i]) seen_[i][value] += count;
}

std::vector<std::string> Coverage::lines() const {
  std::vector<std::string> lines;
  for (const DimensionCounts& item : counts())
    lines.push_back(fmt::format("{:<16} {}", item.dimension->name,
                                item.dimension->words.empty()
                                    ? range_line(*item.dimension, item.counts)
                                    : words_line(*item.dimension, item.counts)));
  return lines;
}

std::vector<Coverage::DimensionCounts> Coverage::counts() const {
  std::vector<DimensionCounts> all;
  for (std::size_t i = 0; i < seen_.size(); ++i) all.push_back({&stage_->dimensions[i], seen_[i]});
  return all;
}

}  // namespace monoref
