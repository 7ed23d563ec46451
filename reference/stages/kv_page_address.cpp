#include "reference/stages/kv_page_address.hpp"

#include <limits>
#include <string_view>

#include "reference/rules/stage_checks.hpp"

namespace monoref {
namespace {

/// Bytes of a 16-byte unit, the granule of both page forms.
constexpr std::int64_t kUnitBytes = 16;

void require_at_least_one(std::string_view name, std::int64_t value) {
  if (value < 1) refuse("kv_page_address: {} is {}, must be at least 1", name, value);
}

void require_multiple(std::string_view name, std::int64_t value, std::int64_t factor) {
  if (value % factor != 0)
    refuse("kv_page_address: {} is {}, must be a multiple of {}", name, value, factor);
}

void require_below(std::string_view name, std::int64_t value, std::int64_t count) {
  if (value < 0 || value >= count)
    refuse("kv_page_address: {} is {}, must be 0 to {}", name, value, count - 1);
}

void check_element(const KvPageShape& shape, const KvElement& element) {
  require_below("slot", element.slot, shape.blocks * shape.block_size);
  require_below("head", element.head, shape.kv_heads);
  require_below("dim", element.dim, shape.head_dim);
}

/// Start of the page and head that hold the element, and the element's key inside that page.
struct PagePlace {
  std::int64_t start;
  std::int64_t token;
};

PagePlace page_place(const KvPageShape& shape, const KvElement& element) {
  const std::int64_t block = element.slot / shape.block_size;
  const std::int64_t key = element.slot % shape.block_size;
  const std::int64_t page = block * shape.block_page_stride() + key / shape.page_size;
  const std::int64_t head_bytes = shape.head_dim * shape.page_size * shape.element_size;
  return {page * shape.page_bytes() + element.head * head_bytes, key % shape.page_size};
}

/// Takes a number apart from its least significant digit upwards.
class Digits {
 public:
  explicit Digits(std::int64_t number) : rest_(number) {}
  std::int64_t take(std::int64_t radix) {
    const std::int64_t digit = rest_ % radix;
    rest_ /= radix;
    return digit;
  }
  std::int64_t rest() const { return rest_; }

 private:
  std::int64_t rest_;
};

/// The slot of key `token` of page `page_in_block`, unless that page is the other side's.
std::optional<KvElement> element_at(const KvPageShape& shape, Digits& pages, std::int64_t token,
                                    std::int64_t head, std::int64_t dim) {
  const std::int64_t page_in_block = pages.take(shape.pages_per_block());
  const std::int64_t side = shape.layout == KvLayout::kInterleaved ? pages.take(2) : 0;
  if (side != 0) return std::nullopt;
  const std::int64_t slot =
      (pages.rest() * shape.pages_per_block() + page_in_block) * shape.page_size + token;
  return KvElement{slot, head, dim};
}

/// Both bytes of one element of the stage, unchecked: -1 for padding.
struct Bytes {
  std::int64_t k = -1;
  std::int64_t v = -1;
};

Bytes bytes_of(const KvPageAddressInput& input, std::int64_t i) {
  const KvElement element{input.slot_mapping(i), input.head(i), input.dim(i)};
  if (element.slot < 0) return {};
  return {k_byte(input.shape, element), v_byte(input.shape, element)};
}

}  // namespace

std::int64_t KvPageShape::block_page_stride() const {
  return pages_per_block() * (layout == KvLayout::kInterleaved ? 2 : 1);
}

std::int64_t KvPageShape::v_view_pages() const {
  return layout == KvLayout::kInterleaved ? k_view_pages() - pages_per_block() : k_view_pages();
}

std::int64_t KvPageShape::v_view_offset() const {
  return layout == KvLayout::kInterleaved ? pages_per_block() * page_bytes() : 0;
}

void KvPageShape::validate() const {
  require_at_least_one("blocks", blocks);
  require_at_least_one("kv_heads", kv_heads);
  require_at_least_one("head_dim", head_dim);
  require_at_least_one("block_size", block_size);
  require_at_least_one("page_size", page_size);
  if (element_size != 1 && element_size != 2)
    refuse("kv_page_address: element_size is {}, must be 1 or 2", element_size);
  require_multiple("head_dim", head_dim, unit());
  require_multiple("page_size", page_size, unit());
  require_multiple("block_size", block_size, page_size);
  std::int64_t bytes = element_size;
  for (const std::int64_t factor : {blocks, kv_heads, head_dim, block_size, std::int64_t{2}})
    if (__builtin_mul_overflow(bytes, factor, &bytes))
      refuse("kv_page_address: {} blocks x {} kv_heads x {} head_dim x {} keys exceed {} bytes",
             blocks, kv_heads, head_dim, block_size, std::numeric_limits<std::int64_t>::max());
}

std::int64_t k_byte(const KvPageShape& shape, const KvElement& element) {
  shape.validate();
  check_element(shape, element);
  const PagePlace place = page_place(shape, element);
  const std::int64_t x = shape.unit();
  return place.start + element.dim / x * (shape.page_size * kUnitBytes) + place.token * kUnitBytes +
         element.dim % x * shape.element_size;
}

std::int64_t v_byte(const KvPageShape& shape, const KvElement& element) {
  shape.validate();
  check_element(shape, element);
  const PagePlace place = page_place(shape, element);
  const std::int64_t x = shape.unit();
  return place.start + place.token / x * (shape.head_dim * kUnitBytes) + element.dim * kUnitBytes +
         place.token % x * shape.element_size;
}

std::optional<KvElement> k_element(const KvPageShape& shape, std::int64_t byte) {
  shape.validate();
  require_below("K view byte", byte, shape.k_view_pages() * shape.page_bytes());
  Digits digits(byte);
  digits.take(shape.element_size);
  const std::int64_t dim_in_unit = digits.take(shape.unit());
  const std::int64_t token = digits.take(shape.page_size);
  const std::int64_t dim_unit = digits.take(shape.head_dim / shape.unit());
  const std::int64_t head = digits.take(shape.kv_heads);
  return element_at(shape, digits, token, head, dim_unit * shape.unit() + dim_in_unit);
}

std::optional<KvElement> v_element(const KvPageShape& shape, std::int64_t byte) {
  shape.validate();
  require_below("V view byte", byte, shape.v_view_pages() * shape.page_bytes());
  Digits digits(byte);
  digits.take(shape.element_size);
  const std::int64_t token_in_unit = digits.take(shape.unit());
  const std::int64_t dim = digits.take(shape.head_dim);
  const std::int64_t token_unit = digits.take(shape.page_size / shape.unit());
  const std::int64_t head = digits.take(shape.kv_heads);
  return element_at(shape, digits, token_unit * shape.unit() + token_in_unit, head, dim);
}

std::array<std::int64_t, 1> kv_page_address_shape(const KvPageAddressInput& input) {
  input.shape.validate();
  const std::int64_t n = input.slot_mapping.dim(0);
  require_dims("kv_page_address: head", input.head, {n});
  require_dims("kv_page_address: dim", input.dim, {n});
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t slot = input.slot_mapping(i);
    check_element(input.shape, {slot < 0 ? 0 : slot, input.head(i), input.dim(i)});
  }
  return {n};
}

void kv_page_address(const KvPageAddressInput& input, const KvPageAddressOutput& output) {
  const auto dims = kv_page_address_shape(input);
  require_dims("kv_page_address: output k_byte", output.k_byte, dims);
  require_dims("kv_page_address: output v_byte", output.v_byte, dims);
  for (std::int64_t i = 0; i < dims[0]; ++i) {
    const Bytes bytes = bytes_of(input, i);
    output.k_byte(i) = bytes.k;
    output.v_byte(i) = bytes.v;
  }
}

}  // namespace monoref
