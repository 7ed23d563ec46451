// SHA-256, the digest that every part of a case file carries.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace monoref {

/// A digest that is fed in pieces. Feeding pieces equals feeding their concatenation.
class Sha256 {
 public:
  Sha256();
  Sha256& add(std::span<const std::byte> bytes);
  Sha256& add(std::string_view text);
  /// The digest as 64 lower-case hexadecimal digits. Nothing may be added after it.
  std::string hex();

 private:
  struct Context;
  std::shared_ptr<Context> context_;
};

}  // namespace monoref
