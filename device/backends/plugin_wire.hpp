// The serial form of a call: numbers of 8 bytes, texts with their length and a final zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace monoref::device::plugin {

class Writer {
 public:
  void number(std::uint64_t value) { append(&value, sizeof value); }
  void number(std::int64_t value) { append(&value, sizeof value); }
  void real(double value) { append(&value, sizeof value); }
  void text(std::string_view value) {
    number(std::uint64_t{value.size()});
    append(value.data(), value.size());
    bytes_.resize((bytes_.size() / 8 + 1) * 8);  // at least one zero, and aligned again
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  void append(const void* data, std::size_t size) {
    if (size == 0) return;
    const std::size_t at = bytes_.size();
    bytes_.resize(at + size);
    std::memcpy(bytes_.data() + at, data, size);
  }

  std::vector<std::byte> bytes_;
};

/// Reads what a Writer of the same program wrote; pointers stay valid as long as the bytes do.
class Reader {
 public:
  explicit Reader(const std::byte* bytes) : at_(bytes) {}

  std::uint64_t number() { return take<std::uint64_t>(); }
  std::int64_t signed_number() { return take<std::int64_t>(); }
  double real() { return take<double>(); }
  const char* text() {
    const std::uint64_t size = number();
    const char* const value = reinterpret_cast<const char*>(at_);
    at_ += (size / 8 + 1) * 8;
    return value;
  }

 private:
  template <class T>
  T take() {
    T value;
    std::memcpy(&value, at_, sizeof value);
    at_ += sizeof value;
    return value;
  }

  const std::byte* at_;
};

}  // namespace monoref::device::plugin
