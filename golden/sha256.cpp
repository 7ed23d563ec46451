#include "golden/sha256.hpp"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>
#include <stdexcept>

namespace monoref {

struct Sha256::Context {
  EVP_MD_CTX* handle = EVP_MD_CTX_new();
  Context() = default;
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context() { EVP_MD_CTX_free(handle); }
};

namespace {

void require(int answer) {
  if (answer != 1) throw std::runtime_error("OpenSSL cannot compute a SHA-256");
}

}  // namespace

Sha256::Sha256() : context_(std::make_shared<Context>()) {
  require(EVP_DigestInit_ex(context_->handle, EVP_sha256(), nullptr));
}

Sha256& Sha256::add(std::span<const std::byte> bytes) {
  if (!bytes.empty()) require(EVP_DigestUpdate(context_->handle, bytes.data(), bytes.size()));
  return *this;
}

Sha256& Sha256::add(std::string_view text) {
  return add(std::as_bytes(std::span(text)));
}

std::string Sha256::hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  require(EVP_DigestFinal_ex(context_->handle, digest.data(), &size));
  std::string text;
  for (unsigned int i = 0; i < size; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

}  // namespace monoref
