#include "tests/fuzz/recording_mutations.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "fuzz/random.hpp"

namespace monoref::testing {
namespace {

constexpr std::int64_t kNumbers[] = {std::numeric_limits<std::int64_t>::min(),
                                     -(std::int64_t{1} << 31),
                                     -2,
                                     -1,
                                     0,
                                     1,
                                     3,
                                     1000,
                                     1'000'000,
                                     std::int64_t{1} << 30,
                                     (std::int64_t{1} << 31) - 1,
                                     std::int64_t{1} << 32,
                                     std::int64_t{1} << 40,
                                     std::numeric_limits<std::int64_t>::max()};
constexpr DType kTypes[] = {DType::kBFloat16, DType::kFloat32, DType::kFloat64,     DType::kInt32,
                            DType::kInt64,    DType::kUInt8,   DType::kFloat8E4M3FN};

using Side = std::vector<NamedTensor> RecordedCase::*;

/// A dense tensor of as many of the old bytes as fit, again and again.
Tensor refilled(const Tensor& old, DType type, const std::vector<std::int64_t>& dims) {
  Tensor tensor(type, Layout::dense(dims));
  std::vector<std::byte> image = tensor.image();
  const std::vector<std::byte> bytes = old.image();
  for (std::size_t i = 0; i < image.size() && !bytes.empty(); ++i)
    image[i] = bytes[i % bytes.size()];
  tensor.set_image(image);
  return tensor;
}

NamedScalar& scalar_of(RecordedCase& item, const std::string& name) {
  return *std::find_if(item.scalars.begin(), item.scalars.end(),
                       [&](const NamedScalar& scalar) { return scalar.name == name; });
}

Tensor& tensor_of(RecordedCase& item, Side side, const std::string& name) {
  return std::find_if((item.*side).begin(), (item.*side).end(),
                      [&](const NamedTensor& tensor) { return tensor.name == name; })
      ->tensor;
}

void add_scalar(std::vector<RecordingMutation>& all, const std::string& name, const Scalar& value,
                std::string text) {
  all.push_back({fmt::format("{} = {}", name, text),
                 [name, value](RecordedCase& item) { scalar_of(item, name).value = value; }});
}

void add_scalar_mutations(std::vector<RecordingMutation>& all, const NamedScalar& scalar) {
  for (const std::int64_t number : kNumbers)
    add_scalar(all, scalar.name, number, fmt::format("{}", number));
  if (const auto* number = std::get_if<std::int64_t>(&scalar.value))
    for (const std::int64_t step : {-1, 1})
      add_scalar(all, scalar.name, *number + step, fmt::format("{}", *number + step));
  for (const double real : {0.0, -1.0, 1e-40, 1e300, double{INFINITY}, double{NAN}})
    add_scalar(all, scalar.name, real, fmt::format("{}", real));
  add_scalar(all, scalar.name, std::string("word"), "word");
  all.push_back({scalar.name + " is missing", [name = scalar.name](RecordedCase& item) {
                   std::erase_if(item.scalars,
                                 [&](const NamedScalar& other) { return other.name == name; });
                 }});
}

void add_tensor(std::vector<RecordingMutation>& all, Side side, const std::string& name,
                const std::string& what, const std::function<Tensor(const Tensor&)>& change) {
  all.push_back({name + ": " + what, [side, name, change](RecordedCase& item) {
                   Tensor& tensor = tensor_of(item, side, name);
                   tensor = change(tensor);
                 }});
}

/// Dims that are not the tensor's, of about as many elements.
std::vector<std::vector<std::int64_t>> other_dims(const std::vector<std::int64_t>& dims) {
  std::vector<std::vector<std::int64_t>> all{{}, {0}, {1}};
  std::int64_t elements = 1;
  for (const std::int64_t dim : dims) elements *= dim;
  all.push_back({elements});
  all.push_back({1, elements});
  all.push_back({elements, 1});
  all.push_back({elements, 0});
  for (std::size_t axis = 0; axis < dims.size(); ++axis) {
    for (const std::int64_t size :
         {std::int64_t{0}, std::int64_t{1}, dims[axis] - 1, dims[axis] + 1, 2 * dims[axis]}) {
      all.push_back(dims);
      all.back()[axis] = std::max<std::int64_t>(size, 0);
    }
    if (axis > 0) {
      all.push_back(dims);
      std::swap(all.back()[axis - 1], all.back()[axis]);
    }
  }
  all.push_back(dims);
  all.back().push_back(1);
  std::erase(all, dims);
  return all;
}

/// One element becomes `bits`, cut to its size.
Tensor with_element(const Tensor& old, std::int64_t at, std::uint64_t bits) {
  Tensor tensor = old;
  std::memcpy(tensor.base() + at * static_cast<std::int64_t>(tensor.element_size()), &bits,
              tensor.element_size());
  return tensor;
}

void add_element_mutations(std::vector<RecordingMutation>& all, Side side, const NamedTensor& named,
                           CounterRandom& random) {
  constexpr std::uint64_t kBits[] = {0,      1,          0xFFFFFFFFFFFFFFFF, 0x7FFFFFFF7FFFFFFF,
                                     999999, 0x80000000, 0x7F807F807F807F80, 0xFFC0FFC0FFC0FFC0};
  const std::int64_t elements = named.tensor.layout().elements();
  if (elements == 0) return;
  for (const std::uint64_t bits : kBits) {
    const std::int64_t at = random.below(elements);
    add_tensor(all, side, named.name, fmt::format("element {} = 0x{:x}", at, bits),
               [at, bits](const Tensor& old) { return with_element(old, at, bits); });
  }
  for (const int byte : {0x00, 0x7F, 0x80, 0xFF})
    add_tensor(all, side, named.name, fmt::format("all bytes 0x{:02x}", byte),
               [byte](const Tensor& old) {
                 Tensor tensor = old;
                 tensor.fill_bytes(static_cast<std::byte>(byte));
                 return tensor;
               });
  const std::uint64_t seed = random.bits64();
  add_tensor(all, side, named.name, "random bytes", [seed](const Tensor& old) {
    CounterRandom bytes(seed, "bytes");
    std::vector<std::byte> image = old.image();
    for (std::byte& byte : image) byte = static_cast<std::byte>(bytes.bits32() & 0xFF);
    Tensor tensor = old;
    tensor.set_image(image);
    return tensor;
  });
}

void add_tensor_mutations(std::vector<RecordingMutation>& all, Side side, const NamedTensor& named,
                          CounterRandom& random) {
  for (const DType type : kTypes)
    if (type != named.tensor.type())
      add_tensor(all, side, named.name, fmt::format("type {}", dtype_name(type)),
                 [type](const Tensor& old) { return refilled(old, type, old.dims()); });
  for (const auto& dims : other_dims(named.tensor.dims()))
    add_tensor(all, side, named.name, fmt::format("dims [{}]", fmt::join(dims, ", ")),
               [dims](const Tensor& old) { return refilled(old, old.type(), dims); });
  add_element_mutations(all, side, named, random);
  all.push_back({named.name + " is missing", [side, name = named.name](RecordedCase& item) {
                   std::erase_if(item.*side,
                                 [&](const NamedTensor& other) { return other.name == name; });
                 }});
}

}  // namespace

std::vector<RecordingMutation> mutations_of(const RecordedCase& item, std::uint64_t seed) {
  CounterRandom random(seed, "recording mutations");
  std::vector<RecordingMutation> all;
  for (const NamedScalar& scalar : item.scalars) add_scalar_mutations(all, scalar);
  for (const Side side : {&RecordedCase::inputs, &RecordedCase::outputs})
    for (const NamedTensor& named : item.*side) add_tensor_mutations(all, side, named, random);
  return all;
}

}  // namespace monoref::testing
