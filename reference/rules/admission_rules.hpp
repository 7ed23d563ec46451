// What the lists of reasons have in common by which a step or a model is declined.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "reference/model/shapes.hpp"

namespace monoref {

/// Whose list of reasons applies. Each level includes the ones before it.
enum class AdmissionRules : std::uint8_t {
  kTarget,  ///< mono-decode section 2, in the order of mono-decode section 10
  kStored,  ///< the stored dispatcher: mono-decode section 10, "Admission, in order"
  kNewer,   ///< with the three checks of the newer dispatcher after them
};

namespace detail {

/// A rule's answer: the message, or empty where the rule is kept.
using Fault = std::string;

/// The message if `broken`. The arguments are formatted only then.
template <class... Args>
Fault fault_if(bool broken, fmt::format_string<Args...> format, Args&&... args) {
  return broken ? fmt::format(format, std::forward<Args>(args)...) : Fault();
}

/// One entry of an ordered list.
template <class Reason, class Request>
struct Rule {
  Reason reason;
  AdmissionRules from;  ///< the first level that has the rule
  Fault (*check)(const Request&, const ModelShape&);
};

/// The first broken rule of a list, as an `Answer{reason, message}`, or nothing.
template <class Answer, class List, class Request>
std::optional<Answer> first_broken(const List& list, const Request& request,
                                   const ModelShape& shape, AdmissionRules rules) {
  shape.validate();
  for (const auto& rule : list) {
    if (rule.from > rules) continue;
    Fault fault = rule.check(request, shape);
    if (!fault.empty()) return Answer{rule.reason, std::move(fault)};
  }
  return std::nullopt;
}

}  // namespace detail
}  // namespace monoref
