#include "fuzz/params.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>

#include "reference/core/error.hpp"

namespace monoref {
namespace {

template <class Number>
Number parse_number(std::string_view text, std::string_view what) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range)
    refuse("line: {} is {}, must be {} to {}", what, text, std::numeric_limits<Number>::min(),
           std::numeric_limits<Number>::max());
  if (error != std::errc{} || end != text.data() + text.size())
    refuse("line: {} is '{}', must be a whole number", what, text);
  return value;
}

std::int64_t parse_value(const Dimension& dimension, std::string_view text) {
  if (!dimension.words.empty()) {
    const auto found = std::find(dimension.words.begin(), dimension.words.end(), text);
    if (found == dimension.words.end())
      refuse("line: {} is '{}', must be one of {}", dimension.name, text,
             fmt::join(dimension.words, ", "));
    return found - dimension.words.begin();
  }
  const auto value = parse_number<std::int64_t>(text, dimension.name);
  if (!dimension.has(value))
    refuse("line: {} is {}, must be {} to {}{}", dimension.name, value, dimension.low,
           std::max(dimension.high, dimension.most),
           dimension.edges.empty()
               ? ""
               : fmt::format(" or one of {}", fmt::join(dimension.edges, ", ")));
  return value;
}

}  // namespace

Dimension Dimension::choice(std::string_view name, std::vector<std::string_view> words,
                            std::string_view meaning) {
  const auto last = static_cast<std::int64_t>(words.size()) - 1;
  return {name, 0, 0, last, {}, std::move(words), meaning};
}

bool Dimension::has(std::int64_t value) const {
  return (value >= low && value <= std::max(high, most)) ||
         std::find(edges.begin(), edges.end(), value) != edges.end();
}

std::vector<std::int64_t> Dimension::simpler_than(std::int64_t value) const {
  const auto distance = [this](std::int64_t v) { return std::abs(v - simplest); };
  std::vector<std::int64_t> values{simplest, low, high};
  values.insert(values.end(), edges.begin(), edges.end());
  for (std::int64_t step = (value - simplest) / 2; step != 0; step /= 2)
    values.push_back(value - step);
  std::erase_if(values, [&](std::int64_t v) { return !has(v) || distance(v) >= distance(value); });
  std::sort(values.begin(), values.end(), [&](std::int64_t a, std::int64_t b) {
    return std::pair(distance(a), a) < std::pair(distance(b), b);
  });
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

Params::Params(const std::vector<Dimension>& dimensions) : dimensions_(&dimensions) {
  for (const Dimension& dimension : dimensions) values_.push_back(dimension.simplest);
}

std::size_t Params::index(std::string_view name) const {
  for (std::size_t i = 0; i < dimensions_->size(); ++i)
    if ((*dimensions_)[i].name == name) return i;
  refuse("line: dimension '{}' is none of the stage's", name);
}

std::int64_t Params::operator[](std::string_view name) const {
  return values_[index(name)];
}

std::string_view Params::word(std::string_view name) const {
  const std::size_t i = index(name);
  return (*dimensions_)[i].words.at(static_cast<std::size_t>(values_[i]));
}

void Params::set(std::string_view name, std::int64_t value) {
  values_[index(name)] = value;
}

CaseLine parse_line(std::string_view line) {
  CaseLine parsed;
  std::vector<std::string_view> names;
  for (std::string_view rest = line; !rest.empty();) {
    const std::size_t end = std::min(rest.find(';'), rest.size());
    const std::string_view item = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const std::size_t equals = item.find('=');
    if (equals == std::string_view::npos || equals == 0)
      refuse("line: '{}' is not name=value", item);
    const std::string_view name = item.substr(0, equals);
    const std::string_view value = item.substr(equals + 1);
    if (std::find(names.begin(), names.end(), name) != names.end())
      refuse("line: '{}' is given twice", name);
    names.push_back(name);
    if (name == "stage") {
      parsed.stage = value;
    } else if (name == "contract") {
      parsed.contract = Contract::parse(value);
    } else if (name == "seed") {
      parsed.seed = parse_number<std::uint64_t>(value, "seed");
    } else if (name == "gen") {
      parsed.generator_version = parse_number<std::uint32_t>(value, "gen");
      if (parsed.generator_version == 0) refuse("line: gen is 0, must be 1 or more");
    } else if (name == "earlier") {
      const std::size_t colon = std::min(value.find(':'), value.size());
      parsed.earlier =
          Companion{parse_number<std::uint64_t>(value.substr(0, colon), "earlier (SEED:INDEX)"),
                    parse_number<std::uint64_t>(value.substr(std::min(colon + 1, value.size())),
                                                "earlier (SEED:INDEX)")};
    } else {
      parsed.settings.emplace_back(name, value);
    }
  }
  if (parsed.stage.empty()) refuse("line: '{}' names no stage (stage=NAME;...)", line);
  return parsed;
}

std::string format_line(std::string_view stage, const Contract& contract, std::uint64_t seed,
                        std::uint32_t generator_version, const Params& params) {
  std::string line = fmt::format("stage={};contract={};seed={};gen={}", stage, contract.text(),
                                 seed, generator_version);
  for (std::size_t i = 0; i < params.values().size(); ++i) {
    const Dimension& dimension = params.dimensions()[i];
    const std::int64_t value = params.values()[i];
    if (value == dimension.simplest) continue;
    line += dimension.words.empty()
                ? fmt::format(";{}={}", dimension.name, value)
                : fmt::format(";{}={}", dimension.name,
                              dimension.words.at(static_cast<std::size_t>(value)));
  }
  return line;
}

void apply_settings(Params& params, const CaseLine& line) {
  for (const auto& [name, value] : line.settings) {
    const auto& dimensions = params.dimensions();
    const auto found = std::find_if(dimensions.begin(), dimensions.end(),
                                    [&n = name](const Dimension& d) { return d.name == n; });
    if (found == dimensions.end()) {
      std::vector<std::string_view> names;
      for (const Dimension& dimension : dimensions) names.push_back(dimension.name);
      refuse("line: stage {} has no dimension '{}'; it has {}", line.stage, name,
             fmt::join(names, ", "));
    }
    params.set(name, parse_value(*found, value));
  }
}

}  // namespace monoref
