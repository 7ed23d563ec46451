// Laws of parts that do not know each other: rows, requests, slots, experts.
#pragma once

#include <initializer_list>

#include "fuzz/laws/law.hpp"

namespace monoref::laws {

/// An axis along which the parts of a case follow each other, `run` elements a part: one if it does
/// not say.
struct Axis {
  std::string_view tensor;
  std::size_t axis = 0;
  std::int64_t (*run)(const Case&) = nullptr;
};

/// Parts of a case by their number, in the order in which a variant has them.
using Parts = std::vector<std::int64_t>;

/// Which parts do not know each other, and where they lie.
struct Independence {
  std::string_view part = "row";
  std::vector<Axis> inputs;        ///< the first one says how many parts there are
  std::vector<Axis> outputs = {};  ///< none named: axis 0 of every output, in runs as of inputs[0]
  /// The parts that the variant has, in its order. Default: all from the last one on, or in `alone`
  /// the one in the middle.
  std::function<Parts(const Case&)> order = {};
  Applies applies = {};
  /// What else of a variant of so many parts is different.
  void (*adjust)(Case& variant, std::int64_t parts) = nullptr;
  /// Makes the variant instead of a choice along the axes of the inputs.
  Case (*variant)(const Case&, const Parts&) = nullptr;
  Compared compared = {};
  /// Whether parts of the outputs follow their inputs. False: outputs stay what they were.
  bool outputs_follow = true;
  std::string name = {};       ///< default: "row_independence", "row_alone"
  std::string statement = {};  ///< default: made of `part`
};

/// Parts in another order are the same parts, bit for bit.
Property permute(Independence about);
/// The same of axis 0 of the named inputs and of all outputs.
Property permute(std::string_view part, std::initializer_list<std::string_view> inputs);

/// A part alone is the same as among the others, bit for bit.
Property alone(Independence about);
Property alone(std::string_view part, std::initializer_list<std::string_view> inputs);

/// A dense tensor of the parts of an axis, `run` elements each, in the given order.
Tensor chosen(const Tensor& tensor, std::size_t axis, const Parts& order, std::int64_t run = 1);

}  // namespace monoref::laws
