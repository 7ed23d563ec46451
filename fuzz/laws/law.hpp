// What every law speaks of: elements and regions of tensors, and variants of a case.
//
// A law is a property (see fuzz/stage.hpp) in a shape that many stages share: "rows in another
// order are the same rows". A stage names its laws, a line each, and says what they are about; how
// a law is tried and what it says when it is broken stands here once.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/stage.hpp"

namespace monoref::laws {

/// Where an element of a tensor lies: a number for each axis.
using Index = std::span<const std::int64_t>;
/// A region of a tensor, and one of each output of a case. Empty: all of it.
using Region = std::function<bool(Index)>;
using OutputRegion = std::function<bool(std::string_view output, Index)>;
/// The region that a law speaks of in a case, of which the outputs are known.
using Compared = std::function<OutputRegion(const Case&, const Outputs&)>;

/// Another case than a given one; nothing where the law does not apply.
using Variant = std::function<std::optional<Case>(const Case&)>;
using Applies = std::function<bool(const Case&)>;

/// A property whose name and statement are made here; they live as long as the program.
Property property(
    std::string name, std::string statement,
    std::function<std::optional<std::string>(const Case&, const Outputs&, const Evaluate&)> check);

/// Calls `visit` for every element that has storage, with its offset in elements, in the order of
/// storage. Padding is no element. Strides of axes with more than one part must keep elements
/// apart.
void each_element(const Layout& layout, const std::function<void(Index, std::int64_t)>& visit);

/// The bits of the element at an offset, and that element with other ones.
std::uint64_t bits_at(const Tensor& tensor, std::int64_t offset);
void put_bits(Tensor& tensor, std::int64_t offset, std::uint64_t bits);

/// An element by its place: "state[0, 3]".
std::string place_of(std::string_view tensor, Index index);

/// The first element that two results do not have in common, of those compared: its place. Outputs
/// of other dims are told as such. `only` lists the outputs to look at; none listed: all.
std::optional<std::string> first_difference(const Outputs& before, const Outputs& after,
                                            const std::vector<std::string_view>& only = {},
                                            const OutputRegion& compared = {});

/// The tensor of that name among the outputs to be compared.
bool is_listed(const std::vector<std::string_view>& only, std::string_view name);

}  // namespace monoref::laws
