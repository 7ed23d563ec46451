#include "golden/case.hpp"

namespace monoref {
namespace {

const Scalar* find_scalar(const Case& item, const std::string& key) {
  for (const NamedScalar& scalar : item.scalars)
    if (scalar.name == key) return &scalar.value;
  return nullptr;
}

template <class T>
const T& scalar_as(const Case& item, const std::string& key, const char* kind) {
  const Scalar* found = find_scalar(item, key);
  if (found == nullptr) refuse("{}: the case has no parameter '{}'", item.stage, key);
  const T* value = std::get_if<T>(found);
  if (value == nullptr) refuse("{}: parameter '{}' is not {}", item.stage, key, kind);
  return *value;
}

}  // namespace

std::int64_t Case::integer(const std::string& key) const {
  return scalar_as<std::int64_t>(*this, key, "an integer");
}

std::int64_t Case::integer_or(const std::string& key, std::int64_t otherwise) const {
  return find_scalar(*this, key) == nullptr ? otherwise : integer(key);
}

double Case::real(const std::string& key) const {
  return scalar_as<double>(*this, key, "a real number");
}

const std::string& Case::word(const std::string& key) const {
  return scalar_as<std::string>(*this, key, "a word");
}

const Tensor* Case::find_input(const std::string& key) const {
  for (const NamedTensor& input : inputs)
    if (input.name == key) return &input.tensor;
  return nullptr;
}

const Tensor& Case::input(const std::string& key) const {
  const Tensor* found = find_input(key);
  if (found == nullptr) refuse("{}: the case has no input '{}'", stage, key);
  return *found;
}

const ExpectedOutput* Case::find_expected(const std::string& key) const {
  for (const ExpectedOutput& output : expected)
    if (output.name == key) return &output;
  return nullptr;
}

}  // namespace monoref
