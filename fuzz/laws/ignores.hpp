// Laws of what must not matter: a case that differs there has the same outputs.
#pragma once

#include "fuzz/laws/law.hpp"

namespace monoref::laws {

/// What of the outputs must be the same. Nothing named: everything.
struct Sameness {
  std::vector<std::string_view> outputs = {};
  Compared compared = {};
};

/// The outputs of a case and of its variants are the same bits.
Property unchanged(std::string name, std::string statement, std::vector<Variant> variants,
                   Sameness same = {});

/// Elements of an input that nobody may look at.
struct Ignored {
  std::string_view input;
  std::function<Region(const Case&)> where = {};  ///< empty: all of the input
};

/// Such elements may hold anything: NaN; as integers, -1 and the largest in turn; as bytes, other
/// ones. A law does not apply to a case that has none.
Property ignores(std::string name, std::string statement, std::vector<Ignored> ignored,
                 Sameness same = {});

/// A property of another case than the one that is there.
Property of_variant(Variant variant, Property property);

/// The variant of a case in which such elements hold something else; nothing if it has none.
std::optional<Case> poisoned(const Case& item, const std::vector<Ignored>& ignored);
/// Variants with another value of a scalar, and with two inputs in each other's place.
Variant with_scalar(std::string name, Scalar value);
Variant exchanged(std::string a, std::string b);

}  // namespace monoref::laws
