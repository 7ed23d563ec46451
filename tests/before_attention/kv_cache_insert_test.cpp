#include "reference/stages/kv_cache_insert.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "reference/formats/float_format.hpp"
#include "tests/before_attention/numbers.hpp"
#include "tests/reference/stage_test.hpp"

namespace monoref::testing {
namespace {

constexpr std::byte kOld{0x55};
constexpr std::int64_t kHeadDim = 128;

/// One call: rows of one key/value head unless set, caches filled with kOld.
struct Insert {
  std::int64_t rows = 1;
  std::int64_t heads = 1;
  std::int64_t head_dim = kHeadDim;
  Contract contract{};
  std::vector<float> k = std::vector<float>(size(rows * heads * head_dim), 1.0f);
  Codes v = Codes(size(rows * heads * head_dim), bf16(1));
  std::vector<float> index_k = std::vector<float>(size(rows * head_dim), 1.0f);
  Tensor slots = longs(Numbers(size(rows), 0));
  Tensor k_cache{};  ///< both sides if interleaved
  Tensor v_cache{};
  Tensor index_cache{};
  double k_scale = 1.0;
  double v_scale = 1.0;

  static std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

  bool interleaved() const { return contract.kv_layout == KvLayout::kInterleaved; }
  Insert& caches(std::int64_t blocks, DType type = DType::kFloat8E4M3FN,
                 DType index_type = DType::kFloat8E4M3FN) {
    const Layout kv = Layout::dense({blocks, interleaved() ? 16 : 8, heads, head_dim * 16});
    k_cache = filled(type, kv);
    v_cache = interleaved() ? Tensor() : filled(type, kv);
    index_cache = filled(index_type, Layout::dense({blocks, 128, head_dim}));
    return *this;
  }
  KvCacheInsertInput input() {
    return {{k.data(), {rows, heads, head_dim}, {heads * head_dim, head_dim, 1}},
            {v.data(), {rows, heads, head_dim}, {heads * head_dim, head_dim, 1}},
            {index_k.data(), {rows, 1, head_dim}, {head_dim, head_dim, 1}},
            slots,
            k_cache,
            interleaved() ? k_cache : v_cache,
            index_cache,
            k_scale,
            v_scale,
            contract};
  }
  Insert& run() {
    kv_cache_insert(input(), {k_cache, interleaved() ? k_cache : v_cache, index_cache});
    return *this;
  }
  std::string refusal() {
    return refusal_of([&] { kv_cache_insert_shape(input()); });
  }
  static Tensor filled(DType type, Layout layout) {
    Tensor tensor(type, std::move(layout));
    tensor.fill_bytes(kOld);
    return tensor;
  }
};

/// Bytes of a tensor that are no longer kOld.
std::map<std::int64_t, std::uint8_t> written(const Tensor& cache) {
  std::map<std::int64_t, std::uint8_t> found;
  const auto size = static_cast<std::int64_t>(cache.element_size());
  for (const Extent& extent : cache.layout().extents)
    for (std::int64_t i = extent.offset * size; i < (extent.offset + extent.count) * size; ++i)
      if (cache.base()[i] != kOld) found[i] = static_cast<std::uint8_t>(cache.base()[i]);
  return found;
}
using Written = std::map<std::int64_t, std::uint8_t>;

/// The code that the K cache, the V cache and the index cache hold for one number.
struct Stored {
  int k;
  int v;
  int index;
  bool operator==(const Stored&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Stored& stored) {
  return out << std::hex << "k " << stored.k << ", v " << stored.v << ", index " << stored.index;
}

/// `key` and `value` at slot 0, dim 0 of FP8 caches.
Stored store_one(const char* contract, float key, std::uint16_t value, double k_scale = 1,
                 double v_scale = 1) {
  Insert insert{.contract = Contract::parse(contract)};
  const DType type = insert.contract.fp8_encoding == Fp8Encoding::kFnuz ? DType::kFloat8E4M3FNUZ
                                                                        : DType::kFloat8E4M3FN;
  insert.caches(1, type, type);
  insert.k[0] = insert.index_k[0] = key;
  insert.v[0] = value;
  insert.k_scale = k_scale;
  insert.v_scale = v_scale;
  insert.run();
  const bool shared = insert.interleaved();
  const Tensor& v_cache = shared ? insert.k_cache : insert.v_cache;
  return {std::to_integer<int>(insert.k_cache.base()[0]),
          std::to_integer<int>(v_cache.base()[shared ? 8 * 2048 : 0]),
          std::to_integer<int>(insert.index_cache.base()[0])};
}

/// Codes 0x00 to 0x77 by row and dim; never kOld and exact in E4M3.
std::uint8_t code_of(std::int64_t row, std::int64_t dim, std::int64_t which) {
  const std::int64_t code = (row * 31 + dim * 5 + which * 11) % 0x70;
  return static_cast<std::uint8_t>(code == 0x55 ? 0x75 : code);
}

void fill_with_codes(Insert& insert) {
  for (std::int64_t row = 0; row < insert.rows; ++row)
    for (std::int64_t d = 0; d < kHeadDim; ++d) {
      const std::size_t at = Insert::size(row * kHeadDim + d);
      insert.k[at] = decode(kE4M3FN, code_of(row, d, 0));
      insert.v[at] = bf16(decode(kE4M3FN, code_of(row, d, 1)));
      insert.index_k[at] = decode(kE4M3FN, code_of(row, d, 2));
    }
}

/// Slots at every kind of place: first and last key of a page and of a block, and padding.
const Numbers kSlots{0, 15, -1, 16, 127, 128, 300, 383, -7};

TEST(KvCacheInsert, EveryByteOfInterleavedFp8Caches) {
  Insert insert{.rows = 9};
  insert.caches(3);
  insert.slots = longs(kSlots);
  fill_with_codes(insert);
  insert.run();
  Written kv;
  Written index;
  for (std::int64_t row = 0; row < 9; ++row) {
    const std::int64_t slot = kSlots[Insert::size(row)];
    if (slot < 0) continue;
    const std::int64_t page = slot / 128 * 16 + slot % 128 / 16;
    const std::int64_t t = slot % 16;
    for (std::int64_t d = 0; d < kHeadDim; ++d) {
      kv[page * 2048 + d / 16 * 256 + t * 16 + d % 16] = code_of(row, d, 0);
      kv[16384 + page * 2048 + d * 16 + t] = code_of(row, d, 1);
      index[slot * 128 + d] = code_of(row, d, 2);
    }
  }
  EXPECT_EQ(written(insert.k_cache), kv);
  EXPECT_EQ(written(insert.index_cache), index);
}

TEST(KvCacheInsert, EveryByteOfDenseBf16Caches) {
  Insert insert{.rows = 9, .contract = Contract::parse("mono,kv_layout=dense")};
  insert.caches(3, DType::kBFloat16, DType::kBFloat16);
  insert.slots = longs(kSlots);
  fill_with_codes(insert);
  insert.run();
  Written k;
  Written v;
  Written index;
  const auto put = [](Written& bytes, std::int64_t element, float value) {
    const std::uint16_t code = bf16(value);
    for (const int byte : {0, 1}) {
      const auto stored = static_cast<std::uint8_t>(code >> 8 * byte);
      if (stored != std::to_integer<std::uint8_t>(kOld)) bytes[2 * element + byte] = stored;
    }
  };
  for (std::int64_t row = 0; row < 9; ++row) {
    const std::int64_t slot = kSlots[Insert::size(row)];
    if (slot < 0) continue;
    const std::int64_t page = slot / 16;
    const std::int64_t t = slot % 16;
    for (std::int64_t d = 0; d < kHeadDim; ++d) {
      put(k, page * 2048 + d / 8 * 128 + t * 8 + d % 8, decode(kE4M3FN, code_of(row, d, 0)));
      put(v, page * 2048 + t / 8 * 1024 + d * 8 + t % 8, decode(kE4M3FN, code_of(row, d, 1)));
      put(index, slot * 128 + d, decode(kE4M3FN, code_of(row, d, 2)));
    }
  }
  EXPECT_EQ(written(insert.k_cache), k);
  EXPECT_EQ(written(insert.v_cache), v);
  EXPECT_EQ(written(insert.index_cache), index);
}

TEST(KvCacheInsert, P16TheLayoutIsDeclaredNotGuessed) {
  // Two blocks, so that the first dimension says nothing: V of block 1 lies behind K of block 1.
  Insert insert;
  insert.caches(2);
  insert.slots = longs({128});
  insert.run();
  const Written bytes = written(insert.k_cache);
  EXPECT_EQ(bytes.size(), 256u);
  EXPECT_TRUE(bytes.contains(16 * 2048));
  EXPECT_TRUE(bytes.contains(16 * 2048 + 8 * 2048));
  Insert dense{.contract = Contract::parse("mono,kv_layout=dense")};
  dense.caches(2);
  dense.slots = longs({128});
  dense.run();
  EXPECT_TRUE(written(dense.k_cache).contains(8 * 2048));
  EXPECT_TRUE(written(dense.v_cache).contains(8 * 2048));
}

TEST(KvCacheInsert, SeveralHeadsShareAPage) {
  Insert insert{.heads = 2};
  insert.caches(1);
  for (std::size_t d = 0; d < 128; ++d) insert.k[128 + d] = 2;
  insert.run();
  EXPECT_EQ(std::to_integer<int>(insert.k_cache.base()[0]), 0x38);
  EXPECT_EQ(std::to_integer<int>(insert.k_cache.base()[2048]), 0x40) << "head 1";
  EXPECT_EQ(std::to_integer<int>(insert.k_cache.base()[8 * 4096]), 0x38) << "V, 8 pages later";
}

TEST(KvCacheInsert, F16OverflowByTheContract) {
  const float infinity = std::numeric_limits<float>::infinity();
  constexpr std::uint16_t kAny = 0;
  const char* const unrounded = "mono,key_source=unrounded";
  const char* const saturating = "mono,key_source=unrounded,fp8_overflow=saturate";
  struct {
    float value;
    int nan_rule;
    int saturating_rule;
  } const cases[] = {{448, 0x7E, 0x7E},      {464, 0x7E, 0x7E},       {464.0001f, 0x7F, 0x7E},
                     {465, 0x7F, 0x7E},      {1000, 0x7F, 0x7E},      {-1000, 0x7F, 0xFE},
                     {infinity, 0x7F, 0x7E}, {-infinity, 0x7F, 0xFE}, {std::nanf(""), 0x7F, 0x7F}};
  for (const auto& [value, nan_rule, saturating_rule] : cases) {
    EXPECT_EQ(store_one(unrounded, value, kAny), (Stored{nan_rule, 0, nan_rule})) << value;
    EXPECT_EQ(store_one(saturating, value, kAny), (Stored{saturating_rule, 0, saturating_rule}))
        << value;
  }
  // V: 464 is BF16, the next number 466 is past the tie.
  EXPECT_EQ(store_one("mono", 0, bf16(464)).v, 0x7E);
  EXPECT_EQ(store_one("mono", 0, bf16(466)).v, 0x7F);
  EXPECT_EQ(store_one("mono,fp8_overflow=saturate", 0, bf16(-466)).v, 0xFE);
  EXPECT_EQ(store_one("mono,fp8_overflow=saturate", 0, 0xFFC1).v, 0x7F);
}

TEST(KvCacheInsert, F03F04Fnuz) {
  const char* const fnuz = "mono,fp8_encoding=e4m3fnuz,fp8_max=240";
  struct {
    float value;
    int code;
  } const cases[] = {{128, 0x78}, {144, 0x79}, {200, 0x7C}, {224, 0x7E},          {240, 0x7F},
                     {248, 0x80}, {-1e-7f, 0}, {-0.0f, 0},  {-0x1p-11f, 0},       {-0x1p-10f, 0x81},
                     {1, 0x40},   {-1, 0xC0},  {247, 0x7F}, {std::nanf(""), 0x80}};
  for (const auto& [value, code] : cases) EXPECT_EQ(store_one(fnuz, value, 0).k, code) << value;
  EXPECT_EQ(store_one("mono,fp8_encoding=e4m3fnuz,fp8_overflow=saturate", -1000, 0).k, 0xFF);
  EXPECT_EQ(store_one("mono", 256, 0).k, 0x78) << "the top binade of FN";
  EXPECT_EQ(store_one("mono", -1e-7f, 0).k, 0x80) << "FN keeps the sign of zero";
}

TEST(KvCacheInsert, F06KeysRoundOnceOrTwice) {
  // Just above the midpoint of 1 and 1.125. BF16 drops the difference and leaves the tie.
  const float key = 1.0625f * (1 + 0x1p-13f);
  EXPECT_EQ(store_one("mono", key, 0), (Stored{0x38, 0, 0x38}));
  EXPECT_EQ(store_one("mono,key_source=unrounded", key, 0), (Stored{0x39, 0, 0x39}));
  EXPECT_EQ(store_one("mono", 0, bf16(1.0625f)).v, 0x38);
  EXPECT_EQ(store_one("mono,key_source=unrounded", 0, bf16(1.0625f)).v, 0x38)
      << "V is BF16 already";
}

TEST(KvCacheInsert, DivisionAndReciprocalDiffer) {
  // 10.9375 / 7 is 1.5625 exactly, a tie that goes to 1.5; times the rounded seventh it is above.
  EXPECT_EQ(store_one("mono", 10.9375f, bf16(10.9375f), 7, 7), (Stored{0x3C, 0x3C, 0x53}));
  EXPECT_EQ(store_one("mono,kv_scale=reciprocal", 10.9375f, bf16(10.9375f), 7, 7),
            (Stored{0x3D, 0x3D, 0x53}));
}

TEST(KvCacheInsert, EachSideHasItsOwnScaleAndIndexKeysHaveNone) {
  EXPECT_EQ(store_one("mono", 8, bf16(8), 0.5, 4), (Stored{0x58, 0x40, 0x50})) << "16, 2, 8";
  EXPECT_EQ(store_one("mono", 8, bf16(8)), (Stored{0x50, 0x50, 0x50}))
      << "unit scale is the default";
  // A power of two shifts exponents, whichever way it is applied.
  EXPECT_EQ(store_one("mono,kv_scale=reciprocal", 8, bf16(8), 0.5, 4), (Stored{0x58, 0x40, 0x50}));
}

TEST(KvCacheInsert, BFloat16CachesHoldValuesAsTheyAre) {
  Insert insert;
  insert.caches(1, DType::kBFloat16);
  insert.k[0] = 1 + 0x1p-8f;  // a tie, to the even code
  insert.k[1] = std::nanf("");
  insert.v[0] = 0xFFC5;
  insert.run();
  const auto k = insert.k_cache.view<std::uint16_t, 4>();
  EXPECT_EQ(k(0, 0, 0, 0), bf16(1));
  EXPECT_EQ(k(0, 0, 0, 1), 0x7FC0);
  EXPECT_EQ(k(0, 8, 0, 0), 0xFFC5) << "V is copied as bits";
}

TEST(KvCacheInsert, P14SlotsBeyondTheCache) {
  Insert insert{.rows = 3};
  insert.caches(2);
  insert.slots = longs({255, 256, -1});
  EXPECT_EQ(insert.refusal(),
            "kv_cache_insert: slot_mapping[1] is 256, limit 255 (2 blocks of 128)");
  EXPECT_NE(refusal_of([&] { insert.run(); }), "");
  EXPECT_EQ(written(insert.k_cache), Written{}) << "the good row is not written either";
  EXPECT_EQ(written(insert.index_cache), Written{});
  insert.contract = Contract::parse("mono,out_of_range_slot=drop");
  insert.run();
  EXPECT_EQ(written(insert.k_cache).size(), 256u);
  EXPECT_EQ(written(insert.index_cache).size(), 128u);
}

TEST(KvCacheInsert, P13RowsAndSlots) {
  Insert insert{.rows = 3};
  insert.caches(1);
  insert.slots = longs({5, 6});
  EXPECT_EQ(insert.refusal(),
            "kv_cache_insert: slot_mapping has 2 entries, must have 3, one for each row of k");
  insert.contract = Contract::parse("mono,out_of_range_slot=drop");
  insert.run();
  EXPECT_EQ(written(insert.index_cache).size(), 256u);
  insert.slots = longs({7, 8, 9, 7});
  EXPECT_EQ(insert.refusal(), "") << "the fourth slot has no row";
}

TEST(KvCacheInsert, O01PagesBeyondSixteenBits) {
  // Blocks 4096 (page 65536) and 0 of a sparse cache; a page id cut to 16 bits lands in block 0.
  constexpr std::int64_t kBlockElements = 16 * 2048;
  Insert insert;
  Layout kv{{4097, 16, 1, 2048},
            {kBlockElements, 2048, 2048, 1},
            {{0, kBlockElements}, {4096 * kBlockElements, kBlockElements}}};
  Layout index{{4097, 128, 128}, {16384, 128, 1}, {{0, 16384}, {4096 * 16384, 16384}}};
  insert.k_cache = Insert::filled(DType::kFloat8E4M3FN, kv);
  insert.index_cache = Insert::filled(DType::kFloat8E4M3FN, index);
  insert.slots = longs({4096 * 128 + 1});
  insert.run();
  const Written bytes = written(insert.k_cache);
  EXPECT_EQ(bytes.size(), 256u);
  EXPECT_EQ(bytes.begin()->first, 4096 * kBlockElements + 16);
  insert.slots = longs({2 * 128});
  EXPECT_EQ(
      insert.refusal(),
      "kv_cache_insert: slot_mapping[0] is 256, its page 32 of k_cache is elements 65536 to 67583, "
      "must lie in one run of its storage, elements 0 to 32767, 134217728 to 134250495");
}

TEST(KvCacheInsert, LayoutMetamorphic) {
  Insert interleaved{.rows = 9};
  interleaved.caches(3);
  interleaved.slots = longs(kSlots);
  fill_with_codes(interleaved);
  Insert dense = interleaved;
  dense.contract = Contract::parse("mono,kv_layout=dense");
  dense.caches(3);
  interleaved.run();
  dense.run();
  KvPageShape shape{.layout = KvLayout::kInterleaved, .blocks = 3};
  KvPageShape dense_shape{.layout = KvLayout::kDense, .blocks = 3};
  for (std::int64_t slot = 0; slot < 384; ++slot)
    for (std::int64_t d = 0; d < kHeadDim; ++d) {
      const KvElement at{slot, 0, d};
      ASSERT_EQ(interleaved.k_cache.base()[k_byte(shape, at)],
                dense.k_cache.base()[k_byte(dense_shape, at)]);
      ASSERT_EQ(interleaved.k_cache.base()[v_byte(shape, at) + shape.v_view_offset()],
                dense.v_cache.base()[v_byte(dense_shape, at)]);
    }
  EXPECT_EQ(interleaved.index_cache.image(), dense.index_cache.image());
}

TEST(KvCacheInsert, StridedValuesFromTheProjection) {
  Insert insert{.rows = 2};
  insert.caches(1);
  insert.slots = longs({3, 4});
  fill_with_codes(insert);
  Codes row(2 * 1000, 0x7FC1);
  for (std::size_t i = 0; i < 256; ++i) row[i / 128 * 1000 + 500 + i % 128] = insert.v[i];
  Insert strided = insert;
  KvCacheInsertInput input = strided.input();
  input.v = {row.data() + 500, {2, 1, 128}, {1000, 128, 1}};
  kv_cache_insert(input, {strided.k_cache, strided.k_cache, strided.index_cache});
  EXPECT_EQ(strided.k_cache.image(), insert.run().k_cache.image());
}

TEST(KvCacheInsert, OutputsBesideTheirInputs) {
  Insert insert;
  insert.caches(1);
  Tensor kv = Insert::filled(DType::kFloat8E4M3FN, insert.k_cache.layout());
  Tensor index = Insert::filled(DType::kFloat8E4M3FN, insert.index_cache.layout());
  insert.k_cache.base()[2000] = std::byte{0x77};
  kv_cache_insert(insert.input(), {kv, kv, index});
  EXPECT_EQ(kv.base()[2000], std::byte{0x77}) << "the input's content is kept";
  EXPECT_EQ(written(kv).size(), 257u);
  EXPECT_EQ(written(insert.k_cache).size(), 1u) << "the input is not touched";
  Tensor small(DType::kFloat8E4M3FN, Layout::dense({1, 16, 1, 1024}));
  EXPECT_EQ(refusal_of([&] { kv_cache_insert(insert.input(), {small, small, index}); }),
            "kv_cache_insert: output k_cache is float8_e4m3fn of 16384 stored elements, must be"
            " float8_e4m3fn of 32768 in the layout of the input");
  Tensor other = kv;
  EXPECT_EQ(refusal_of([&] { kv_cache_insert(insert.input(), {kv, other, index}); }),
            "kv_cache_insert: output k_cache and v_cache must be as many tensors as in the input");
}

TEST(KvCacheInsert, CacheRefusals) {
  Insert insert;
  insert.caches(1, DType::kFloat8E4M3FNUZ);
  EXPECT_EQ(insert.refusal(),
            "kv_cache_insert: k_cache is float8_e4m3fnuz, must be float8_e4m3fn or bfloat16");
  insert.caches(1, DType::kFloat8E4M3FN, DType::kUInt8);
  EXPECT_EQ(insert.refusal(),
            "kv_cache_insert: index_cache is uint8, must be float8_e4m3fn or bfloat16");
  insert.caches(1);
  insert.index_cache = Tensor(DType::kFloat8E4M3FN, Layout::dense({2, 128, 128}));
  EXPECT_EQ(insert.refusal(), "kv_cache_insert: index_cache has 2 in dimension 0, must have 1");
  insert.index_cache = Tensor(DType::kFloat8E4M3FN, Layout::dense({128, 128}));
  EXPECT_EQ(insert.refusal(), "kv_cache_insert: index_cache has rank 2, must have 3");
  insert.caches(1);
  insert.k_cache = Tensor(DType::kFloat8E4M3FN, Layout::dense({1, 16, 2048}));
  EXPECT_EQ(insert.refusal(), "kv_cache_insert: k_cache has rank 3, must have 4");
  insert.k_cache =
      Tensor(DType::kFloat8E4M3FN, Layout::strided({1, 16, 1, 2048}, {32768, 2050, 2048, 1}));
  EXPECT_EQ(insert.refusal(),
            "kv_cache_insert: k_cache has gaps between its elements, must be dense");
  insert.k_cache = Tensor(DType::kFloat8E4M3FN, Layout::dense({1, 15, 1, 2048}));
  EXPECT_EQ(insert.refusal(),
            "kv_cache_insert: k_cache has 15 pages a block, must be a multiple of 2");
  insert.k_cache = Tensor(DType::kFloat8E4M3FN, Layout::dense({1, 16, 1, 2000}));
  EXPECT_EQ(
      insert.refusal(),
      "kv_cache_insert: k_cache has 2000 elements a page and head, must be a multiple of 128");
  insert.caches(1);
  Tensor second = insert.k_cache;
  const KvCacheInsertInput input = insert.input();
  EXPECT_EQ(
      refusal_of([&] {
        kv_cache_insert_shape({input.k,
                               input.v,
                               input.index_k,
                               insert.slots,
                               insert.k_cache,
                               second,
                               insert.index_cache,
                               1,
                               1,
                               {}});
      }),
      "kv_cache_insert: k_cache and v_cache are 2 tensors, must be 1 under kv_layout=interleaved");
  insert.contract = Contract::parse("mono,kv_layout=dense");
  insert.caches(1);
  insert.v_cache = Tensor(DType::kBFloat16, insert.k_cache.layout());
  EXPECT_EQ(insert.refusal(),
            "kv_cache_insert: v_cache is bfloat16 of [1, 8, 1, 2048], must be as k_cache is,"
            " float8_e4m3fn of [1, 8, 1, 2048]");
}

TEST(KvCacheInsert, ArgumentRefusals) {
  Insert insert{.rows = 2};
  insert.caches(1);
  insert.slots = longs({3, 3});
  EXPECT_EQ(insert.refusal(),
            "kv_cache_insert: slot_mapping is 3 in rows 0 and 1, limit one row a slot");
  insert.slots = ints({2}, {3, 4});
  EXPECT_EQ(insert.refusal(),
            "kv_cache_insert: slot_mapping is int32 of rank 1, must be int64 of rank 1");
  insert.slots = longs({3, 4});
  for (const double scale : {0.0, -1.0, 1e60, 1e-60, std::nan("")}) {
    insert.v_scale = scale;
    EXPECT_NE(insert.refusal().find("kv_cache_insert: v_scale is"), std::string::npos) << scale;
  }
  insert.v_scale = 1;
  insert.k_scale = -2;
  EXPECT_EQ(insert.refusal(),
            "kv_cache_insert: k_scale is -2, must be above 0 and finite in binary32");
  insert.k_scale = 2;
  EXPECT_EQ(insert.refusal(), "");
  insert.caches(1, DType::kBFloat16);
  EXPECT_EQ(insert.refusal(), "kv_cache_insert: k_scale is 2, must be 1 for a bfloat16 cache");
  insert.caches(1);
  KvCacheInsertInput input = insert.input();
  input.v = {insert.v.data(), {2, 1, 64}, {64, 64, 1}};
  EXPECT_EQ(refusal_of([&] { kv_cache_insert_shape(input); }),
            "kv_cache_insert: v has 64 in dimension 2, must have 128");
  input.v = insert.input().v;
  input.index_k = {insert.index_k.data(), {1, 1, 128}, {128, 128, 1}};
  EXPECT_EQ(refusal_of([&] { kv_cache_insert_shape(input); }),
            "kv_cache_insert: index_k has 1 in dimension 0, must have 2");
}

}  // namespace
}  // namespace monoref::testing
