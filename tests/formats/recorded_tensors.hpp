// What tests of recordings share: where the files are, and a tensor's elements as a vector.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "golden/recording.hpp"
#include "reference/core/error.hpp"

namespace monoref::test {

/// The recording of that name in golden/recorded.
inline Recording recorded(const std::string& name) {
  return read_recording(std::string(MONOREF_RECORDED_DIR) + "/" + name + ".h5");
}

/// The stored elements; refuses a type whose size is not the tensor's.
template <class T>
std::vector<T> elements(const Tensor& tensor) {
  if (tensor.element_size() != sizeof(T))
    refuse("elements of {} bytes read from a tensor of {}", sizeof(T), dtype_name(tensor.type()));
  const auto image = tensor.image();
  std::vector<T> values(image.size() / sizeof(T));
  std::memcpy(values.data(), image.data(), image.size());
  return values;
}

}  // namespace monoref::test
