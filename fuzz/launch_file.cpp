#include "fuzz/launch_file.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "golden/disk.hpp"
#include "reference/core/error.hpp"
#include "reference/core/excerpt.hpp"

namespace monoref {
namespace {

using Json = nlohmann::json;

/// An object's member; refuses its absence.
const Json& member(const Json& object, const char* key, const std::string& where) {
  if (!object.is_object() || !object.contains(key)) refuse("{}: has no '{}'", where, key);
  return object.at(key);
}
std::string text(const Json& value, const std::string& where) {
  if (!value.is_string()) refuse("{}: is {}, must be a text", where, excerpt(value.dump()));
  return value.get<std::string>();
}
std::int64_t whole(const Json& value, std::int64_t low, std::int64_t high,
                   const std::string& where) {
  const bool fits = value.is_number_integer() &&
                    !(value.is_number_unsigned() &&
                      value.get<std::uint64_t>() >
                          static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()));
  if (!fits || value.get<std::int64_t>() < low || value.get<std::int64_t>() > high)
    refuse("{}: is {}, must be a whole number from {} to {}", where, excerpt(value.dump()), low,
           high);
  return value.get<std::int64_t>();
}
std::uint32_t whole32(const Json& object, const char* key, std::int64_t high,
                      const std::string& where) {
  return static_cast<std::uint32_t>(
      whole(member(object, key, where), 0, high, fmt::format("{}, {}", where, key)));
}

std::size_t size_of_dtype(const std::string& dtype, const std::string& where) {
  static const std::map<std::string, std::size_t> kSizes{
      {"F64", 8}, {"I64", 8}, {"U64", 8},  {"F32", 4},     {"I32", 4},
      {"U32", 4}, {"F16", 2}, {"BF16", 2}, {"I16", 2},     {"U16", 2},
      {"I8", 1},  {"U8", 1},  {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};
  const auto found = kSizes.find(dtype);
  if (found == kSizes.end()) refuse("{}: the type '{}' is not known", where, excerpt(dtype));
  return found->second;
}

/// The header and the bytes behind it.
struct Safetensors {
  std::string name;
  Json header;
  std::vector<std::byte> file;
  std::size_t data = 0;

  explicit Safetensors(const std::filesystem::path& path)
      : name(path.string()), file(read_whole_file(path)) {
    constexpr std::size_t kLengthBytes = 8;
    std::uint64_t length = 0;
    if (file.size() < kLengthBytes)
      refuse("{}: has {} bytes, a safetensors file has at least {}", name, file.size(),
             kLengthBytes);
    std::memcpy(&length, file.data(), kLengthBytes);
    if (length > file.size() - kLengthBytes)
      refuse("{}: its header has {} bytes, {} are left in the file", name, length,
             file.size() - kLengthBytes);
    const char* const begin = reinterpret_cast<const char*>(file.data()) + kLengthBytes;
    header = Json::parse(begin, begin + length, nullptr, false);
    if (!header.is_object()) refuse("{}: its header is no JSON object", name);
    data = kLengthBytes + static_cast<std::size_t>(length);
  }

  StoredTensor tensor(const std::string& key) const {
    const std::string where = fmt::format("{}, tensor '{}'", name, excerpt(key));
    if (!header.contains(key) || key == "__metadata__") refuse("{}: there is none", where);
    const Json& entry = header.at(key);
    StoredTensor made;
    made.dtype = text(member(entry, "dtype", where), where + ", dtype");
    made.element_size = size_of_dtype(made.dtype, where);
    const Json& shape = member(entry, "shape", where);
    if (!shape.is_array())
      refuse("{}: its shape is {}, must be a list", where, excerpt(shape.dump()));
    const auto limit = static_cast<std::int64_t>(file.size());
    std::int64_t count = 1;
    for (const Json& extent : shape) {
      made.dims.push_back(whole(extent, 0, limit, where + ", shape"));
      count *= made.dims.back();
      if (count > limit)
        refuse("{}: has {} or more elements, the file has {} bytes", where, count, limit);
    }
    const Json& offsets = member(entry, "data_offsets", where);
    if (!offsets.is_array() || offsets.size() != 2)
      refuse("{}: its data_offsets are {}, must be two numbers", where, excerpt(offsets.dump()));
    const auto most = static_cast<std::int64_t>(file.size() - data);
    const std::int64_t begin = whole(offsets[0], 0, most, where + ", data_offsets");
    const std::int64_t end = whole(offsets[1], begin, most, where + ", data_offsets");
    if (end - begin != count * static_cast<std::int64_t>(made.element_size))
      refuse("{}: has {} bytes, its shape and type need {}", where, end - begin,
             count * static_cast<std::int64_t>(made.element_size));
    const auto from = file.begin() + static_cast<std::ptrdiff_t>(data);
    made.bytes.assign(from + begin, from + end);
    return made;
  }
};

template <class T>
std::vector<std::byte> bytes_of(T value) {
  std::vector<std::byte> bytes(sizeof value);
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

std::vector<std::byte> value_bytes(const Json& argument, const std::string& kind,
                                   const std::string& where) {
  const Json& value = member(argument, "value", where);
  if (kind == "i32")
    return bytes_of(static_cast<std::uint32_t>(
        whole(value, std::numeric_limits<std::int32_t>::min(),
              std::numeric_limits<std::uint32_t>::max(), where + ", value")));
  if (kind == "i64")
    return bytes_of(whole(value, std::numeric_limits<std::int64_t>::min(),
                          std::numeric_limits<std::int64_t>::max(), where + ", value"));
  if (kind != "fp32")
    refuse("{}: its kind is '{}', must be pointer, i32, i64, fp32 or hidden", where, excerpt(kind));
  if (!value.is_number() || !std::isfinite(value.get<double>()))
    refuse("{}, value: is {}, must be a finite number", where, excerpt(value.dump()));
  return bytes_of(static_cast<float>(value.get<double>()));
}

void read_pointer(const Json& json, const Safetensors& file, LaunchArgument& argument,
                  const std::string& where) {
  if (json.contains("value")) {
    whole(json.at("value"), 0, 0, where + ", value");
    argument.kind = LaunchArgument::Kind::kNull;
    return;
  }
  argument.kind = LaunchArgument::Kind::kPointer;
  if (json.contains("after"))
    argument.after = file.tensor(text(json.at("after"), where + ", after"));
  const std::string before = text(member(json, "before", where), where + ", before");
  if (before != "zeros") {
    argument.before = file.tensor(before);
  } else {
    if (!argument.after) refuse("{}: begins as zeros, and nothing says how many", where);
    argument.before = *argument.after;
    argument.before.bytes.assign(argument.after->bytes.size(), std::byte{0});
  }
  if (argument.after && argument.after->bytes.size() != argument.before.bytes.size())
    refuse("{}: has {} bytes before the launch and {} after it", where,
           argument.before.bytes.size(), argument.after->bytes.size());
}

LaunchArgument read_argument(const Json& json, const Safetensors& file, std::size_t n,
                             std::uint32_t segment) {
  std::string where = fmt::format("{}, launch, argument {}", file.name, n);
  LaunchArgument argument;
  argument.name = text(member(json, "name", where), where + ", name");
  where += fmt::format(" '{}'", excerpt(argument.name));
  argument.size = whole32(json, "size", segment, where);
  argument.offset = whole32(json, "offset", std::int64_t{segment} - argument.size, where);
  const std::string kind = text(member(json, "kind", where), where + ", kind");
  if (kind == "hidden") {
    argument.kind = LaunchArgument::Kind::kHidden;
    return argument;
  }
  if (kind == "pointer") {
    argument.value.resize(8);
    read_pointer(json, file, argument, where);
  } else {
    argument.value = value_bytes(json, kind, where);
  }
  if (argument.size != argument.value.size())
    refuse("{}: has {} bytes, a {} has {}", where, argument.size, excerpt(kind),
           argument.value.size());
  return argument;
}

std::array<std::uint32_t, 3> three(const Json& launch, const char* key, std::int64_t high,
                                   const std::string& where) {
  const Json& list = member(launch, key, where);
  if (!list.is_array() || list.size() != 3)
    refuse("{}, {}: is {}, must be three numbers", where, key, excerpt(list.dump()));
  std::array<std::uint32_t, 3> values{};
  for (std::size_t n = 0; n < 3; ++n)
    values[n] = static_cast<std::uint32_t>(
        whole(list[n], 1, high, fmt::format("{}, {}[{}]", where, key, n)));
  return values;
}

}  // namespace

LaunchFile read_launch_file(const std::filesystem::path& path) {
  const Safetensors file(path);
  const std::string where = fmt::format("{}, launch", file.name);
  const Json& metadata = member(file.header, "__metadata__", file.name);
  const std::string description = text(member(metadata, "launch", file.name), where);
  const Json json = Json::parse(description, nullptr, false);
  if (!json.is_object()) refuse("{}: is no JSON object", where);
  constexpr std::int64_t kMostShared = std::int64_t{160} << 10;
  constexpr std::int64_t kMostArgumentBytes = 1 << 16;
  constexpr std::int64_t kMostThreads = 1024;
  LaunchFile launch;
  launch.kernel = text(member(json, "kernel", where), where + ", kernel");
  launch.grid = three(json, "grid", std::numeric_limits<std::int32_t>::max(), where);
  launch.threads = three(json, "threads", kMostThreads, where);
  launch.dynamic_lds = whole32(json, "dynamic_lds", kMostShared, where);
  launch.static_lds = whole32(json, "static_lds", kMostShared, where);
  launch.kernarg_bytes = whole32(json, "kernarg_bytes", kMostArgumentBytes, where);
  launch.preloaded_dwords = whole32(json, "preloaded_dwords", kMostArgumentBytes, where);
  launch.private_bytes = whole32(json, "private_bytes", std::int64_t{1} << 30, where);
  const Json& arguments = member(json, "args", where);
  if (!arguments.is_array())
    refuse("{}, args: is {}, must be a list", where, excerpt(arguments.dump()));
  for (std::size_t n = 0; n < arguments.size(); ++n)
    launch.arguments.push_back(read_argument(arguments[n], file, n, launch.kernarg_bytes));
  return launch;
}

}  // namespace monoref
