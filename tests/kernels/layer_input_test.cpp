// The kernels from the layer input to the caches against plain loops over the specification's
// formulas (mono-decode sections 3 and 9), on every way to launch them.
#include <cmath>
#include <map>

#include "tests/kernels/bench.hpp"
#include "tests/kernels/number_model.hpp"

namespace monoref::device {
namespace {

using u8 = std::uint8_t;
using u16 = std::uint16_t;

/// One way to launch: wave, blocks in x and y, threads a block, alignment of the buffers' bases.
struct Launch {
  int wave;
  std::uint32_t blocks, blocks_y, threads;
  std::size_t alignment;

  Grid grid() const { return grid_of(blocks, threads, blocks_y); }
};

std::string launch_name(const ::testing::TestParamInfo<Launch>& launch) {
  const Launch& l = launch.param;
  return "wave" + std::to_string(l.wave) + "_" + std::to_string(l.blocks) + "x" +
         std::to_string(l.blocks_y) + "_of_" + std::to_string(l.threads) + "_at_" +
         std::to_string(l.alignment);
}

/// v + v[lane xor 16], then 8, 4, 2, 1, over 32 numbers.
float butterfly(std::vector<float> v) {
  v.resize(32, 0.0F);
  for (std::size_t mask = 16; mask > 0; mask /= 2) {
    const std::vector<float> before = v;
    for (std::size_t i = 0; i < 32; ++i) v[i] = before[i] + before[i ^ mask];
  }
  return v[0];
}

/// Sum of squares of a run: fma chain from 0.
float square_chain(const float* values, std::size_t count) {
  float sum = 0.0F;
  for (std::size_t i = 0; i < count; ++i) sum = std::fma(values[i], values[i], sum);
  return sum;
}

float reciprocal_root(float x) {
  return 1.0F / std::sqrt(x);
}

// ---------------------------------------------------------------------------------------------

/// Rows for residual_norm_quant, with gaps behind them.
struct NormCase {
  i64 rows;
  i32 hidden;
  bool rounded, fnuz, saturates;
  i32 fp8_max;
  i64 gap, element_stride;
  std::vector<u16> ar, residual, gamma;

  std::size_t at(i64 row, i64 i) const {
    return static_cast<std::size_t>(row * stride() + i * element_stride);
  }
  i64 stride() const { return hidden * element_stride + gap; }

  NormCase(i64 row_count, i32 hidden_size, int options, i64 row_gap, i64 stride_of_elements)
      : rows(row_count),
        hidden(hidden_size),
        rounded((options & 1) != 0),
        fnuz((options & 2) != 0),
        saturates((options & 4) != 0),
        fp8_max(fnuz ? 240 : 448),
        gap(row_gap),
        element_stride(stride_of_elements) {
    Draws draws(static_cast<std::uint64_t>(hidden + options));
    const auto size = static_cast<std::size_t>(rows * stride());
    for (std::size_t i = 0; i < size; ++i) {
      ar.push_back(encode_bf16(draws.number(-8, 2)));
      residual.push_back(encode_bf16(draws.number(-6, 3)));
    }
    for (i32 i = 0; i < hidden; ++i) {
      gamma.push_back(encode_bf16(draws.number(-5, -1)));
      ar[at(1, i)] = residual[at(1, i)] = 0;   // bug case F18
      ar[at(2, i)] = static_cast<u16>(i % 3);  // subnormals, whose scale is too small to divide by
      residual[at(2, i)] = 0;
    }
    ar[at(3, hidden / 2)] = 0x7F80;
    residual[at(3, hidden / 2)] = 0xFF80;  // a NaN
  }
};

struct NormOutputs {
  std::vector<u16> residual;
  std::vector<u8> x8;
  std::vector<std::uint32_t> scale;
  bool operator==(const NormOutputs&) const = default;
};

std::vector<float> norm_row(const NormCase& c, std::vector<float> acc) {
  if (c.rounded)
    for (float& value : acc) value = decode_bf16(encode_bf16(value));
  std::vector<float> threads, groups;
  for (std::size_t i = 0; i < acc.size(); i += 8) threads.push_back(square_chain(&acc[i], 8));
  for (std::size_t t = 0; t < threads.size(); t += 32)
    groups.push_back(butterfly(
        {threads.begin() + static_cast<std::ptrdiff_t>(t),
         threads.begin() + static_cast<std::ptrdiff_t>(std::min(t + 32, threads.size()))}));
  const float rstd = reciprocal_root(butterfly(groups) / static_cast<float>(c.hidden) + 1e-6F);
  for (std::size_t i = 0; i < acc.size(); ++i)
    acc[i] = (acc[i] * rstd) * (decode_bf16(c.gamma[i]) + 1.0F);
  return acc;
}

NormOutputs norm_model(const NormCase& c) {
  const E4m3Model format(c.fnuz, c.saturates);
  NormOutputs out;
  for (i64 row = 0; row < c.rows; ++row) {
    std::vector<float> acc;
    for (i64 i = 0; i < c.hidden; ++i) {
      acc.push_back(decode_bf16(c.ar[c.at(row, i)]) + decode_bf16(c.residual[c.at(row, i)]));
      out.residual.push_back(encode_bf16(acc.back()));
    }
    const std::vector<float> n = norm_row(c, acc);
    float amax = 0.0F;
    for (const float value : n)
      if (std::isnan(value) || std::fabs(value) > amax) amax = std::fabs(value);
    for (const float value : n)
      if (std::isnan(value)) amax = value;
    const float scale = amax == 0.0F ? 1.0F : amax / static_cast<float>(c.fp8_max);
    out.scale.push_back(stored_bits(scale));
    for (const float value : n) out.x8.push_back(format.encode(value / scale));
  }
  return out;
}

NormOutputs norm_kernel(const NormCase& c, const Launch& launch) {
  KernelBench bench(launch.wave, launch.alignment);
  const auto count = static_cast<std::size_t>(c.rows * c.hidden);
  const auto ar = bench.add(c.ar), residual = bench.add(c.residual), gamma = bench.add(c.gamma);
  const auto out = bench.add(std::vector<u16>(count, 0xAAAA));
  const auto x8 = bench.add(std::vector<u8>(count, 0xAA));
  const auto scale = bench.add(std::vector<std::uint32_t>(static_cast<std::size_t>(c.rows), 7));
  bench.launch("monoref_residual_norm_quant", launch.grid(), ar, c.stride(), c.element_stride,
               residual, c.stride(), c.element_stride, gamma, i64{1}, out, i64{c.hidden}, x8,
               i64{c.hidden}, scale, c.rows, c.hidden, 1e-6F, i32{c.rounded}, c.fp8_max,
               i32{c.fnuz}, i32{c.saturates});
  return {bench.read<u16>(out), bench.read<u8>(x8), bench.read<std::uint32_t>(scale)};
}

class NormLaunch : public ::testing::TestWithParam<Launch> {};
INSTANTIATE_TEST_SUITE_P(Grids, NormLaunch,
                         ::testing::Values(Launch{64, 1, 1, 1024, 16}, Launch{64, 3, 1, 768, 16},
                                           Launch{32, 9, 1, 768, 8}, Launch{32, 1, 1, 1024, 16},
                                           Launch{64, 2, 1, 832, 2}),
                         launch_name);

TEST_P(NormLaunch, ResidualNormQuant) {
  // 1032: 129 logical threads, one of them alone in its group. 6144: the model's row.
  for (const i32 hidden : {64, 256, 1032, 6144}) {
    for (int options = 0; options < 8; ++options) {
      const NormCase c(5, hidden, options, options % 2 == 0 ? 8 : 3, options == 5 ? 2 : 1);
      EXPECT_EQ(norm_kernel(c, GetParam()), norm_model(c)) << hidden << ", options " << options;
    }
  }
}

TEST(NormMisuse, ABlockTooSmallForTheRowWritesNothing) {
  const NormCase c(5, 1032, 0, 0, 1);
  const NormOutputs got = norm_kernel(c, {64, 1, 1, 128, 16});
  EXPECT_EQ(got.x8, std::vector<u8>(got.x8.size(), 0xAA));
  EXPECT_EQ(got.residual, std::vector<u16>(got.residual.size(), 0xAAAA));
}

// ---------------------------------------------------------------------------------------------

/// Operands of qkv_projection. Large numbers cancel, so that the order of the sum shows through the
/// rounding to BF16.
struct ProjectionCase {
  i64 tokens;
  i32 rows, hidden;
  bool fnuz;
  i64 gap;
  std::vector<u8> x8, weights;  ///< weights [rows, hidden], not yet shuffled
  std::vector<float> x_scale, w_scale;

  u8& x(i64 token, i64 k) { return x8[static_cast<std::size_t>(token * (hidden + gap) + k)]; }
  u8& w(i64 row, i64 k) { return weights[static_cast<std::size_t>(row * hidden + k)]; }

  ProjectionCase(i64 token_count, i32 row_count, i32 hidden_size, bool is_fnuz, i64 row_gap)
      : tokens(token_count), rows(row_count), hidden(hidden_size), fnuz(is_fnuz), gap(row_gap) {
    Draws draws(static_cast<std::uint64_t>(hidden) * 100 + static_cast<std::uint64_t>(tokens));
    const auto small = [&] {
      return static_cast<u8>(draws.below(0x38) + 1 + 0x80 * draws.below(2));
    };
    for (i64 i = 0; i < tokens * (hidden + gap); ++i) x8.push_back(small());
    for (i64 i = 0; i < i64{rows} * hidden; ++i) weights.push_back(small());
    for (i64 i = 0; i < tokens; ++i) x_scale.push_back(draws.number(-4, 4));
    for (i64 i = 0; i < rows; ++i) w_scale.push_back(draws.number(-4, 4));
    for (int pair = 0; pair < 4; ++pair) {
      const i64 plus = draws.below(hidden), minus = draws.below(hidden);
      if (plus == minus) continue;
      for (i64 token = 0; token < tokens; ++token) x(token, plus) = x(token, minus) = 0x7C;
      for (i64 row = 0; row < rows; ++row) {
        const int code = 0x70 + static_cast<int>(row % 8);
        w(row, plus) = static_cast<u8>(code);
        w(row, minus) = static_cast<u8>(code | 0x80);
      }
    }
  }

  /// view [N/16, 16, K/32, 2, 16] permuted to [N/16, K/32, 2, 16, 16]
  std::vector<u8> shuffled() const {
    std::vector<u8> bytes;
    for (i64 tile = 0; tile < rows / 16; ++tile)
      for (i64 group = 0; group < hidden / 32; ++group)
        for (i64 half = 0; half < 2; ++half)
          for (i64 n = 0; n < 16; ++n)
            for (i64 b = 0; b < 16; ++b)
              bytes.push_back(weights[static_cast<std::size_t>((tile * 16 + n) * hidden +
                                                               group * 32 + half * 16 + b)]);
    return bytes;
  }
};

/// The order of k in a chunk of 64.
std::vector<i64> chunk_order() {
  std::vector<i64> order;
  for (const i64 start : {0, 16, 32, 48, 8, 24, 40, 56})
    for (i64 i = 0; i < 8; ++i) order.push_back(start + i);
  return order;
}

float projected_dot(const E4m3Model& format, ProjectionCase& c, i64 token, i64 row) {
  const i64 chunks = c.hidden / 64, of_slice = (chunks + 7) / 8;
  float total = 0.0F;
  for (i64 first = 0; first < chunks; first += of_slice) {
    float sum = 0.0F;
    for (i64 chunk = first; chunk < std::min(first + of_slice, chunks); ++chunk)
      for (const i64 k : chunk_order())
        sum = std::fma(format.decode(c.x(token, chunk * 64 + k)),
                       format.decode(c.w(row, chunk * 64 + k)), sum);
    total += sum;
  }
  return total;
}

std::vector<u16> projection_model(ProjectionCase& c) {
  const E4m3Model format(c.fnuz, false);
  std::vector<u16> out;
  for (i64 token = 0; token < c.tokens; ++token)
    for (i64 row = 0; row < c.rows; ++row)
      out.push_back(encode_bf16(
          (projected_dot(format, c, token, row) * c.x_scale[static_cast<std::size_t>(token)]) *
          c.w_scale[static_cast<std::size_t>(row)]));
  return out;
}

std::vector<u16> projection_kernel(const ProjectionCase& c, const Launch& launch) {
  KernelBench bench(launch.wave, launch.alignment);
  const auto x8 = bench.add(c.x8);
  const auto x_scale = bench.add(c.x_scale);
  const auto weights = bench.add(c.shuffled());
  const auto w_scale = bench.add(c.w_scale);
  const auto out = bench.add(std::vector<u16>(static_cast<std::size_t>(c.tokens * c.rows), 0xAAAA));
  bench.launch("monoref_qkv_projection", launch.grid(), x8, c.hidden + c.gap, x_scale, weights,
               w_scale, out, i64{c.rows}, c.tokens, c.rows, c.hidden, i32{c.fnuz});
  return bench.read<u16>(out);
}

class ProjectionLaunch : public ::testing::TestWithParam<Launch> {};
INSTANTIATE_TEST_SUITE_P(Grids, ProjectionLaunch,
                         ::testing::Values(Launch{64, 3, 1, 128, 16}, Launch{64, 1, 1, 16, 16},
                                           Launch{64, 2, 2, 48, 16}, Launch{32, 1, 1, 128, 16},
                                           Launch{32, 2, 1, 32, 16}),
                         launch_name);

TEST_P(ProjectionLaunch, QkvProjection) {
  // Chunks of 64: 1, 4, 8, 9 (two a slice, the last alone) and 32.
  for (const i32 hidden : {64, 256, 512, 576, 2048}) {
    for (const i64 tokens : {1, 2, 3, 16, 21}) {
      ProjectionCase c(tokens, 48, hidden, tokens == 3, tokens == 16 ? 0 : 5);
      EXPECT_EQ(projection_kernel(c, GetParam()), projection_model(c)) << hidden << " " << tokens;
    }
  }
}

TEST_P(ProjectionLaunch, QkvProjectionOfARowThatIsNotStagedAtOnce) {
  // 137 chunks: 18 a slice, 11 in the last; 16 of one token are staged at a time, 2 of 8.
  for (const i64 tokens : {1, 2, 4, 8}) {
    ProjectionCase c(tokens, 16, 137 * 64, false, 0);
    EXPECT_EQ(projection_kernel(c, GetParam()), projection_model(c)) << tokens;
  }
}

TEST_P(ProjectionLaunch, QkvProjectionOfNans) {
  // The first and the last code of a row and of a slice; a row with one NaN and a token with one.
  for (const bool fnuz : {false, true}) {
    ProjectionCase c(3, 16, 1024, fnuz, 0);
    const u8 nan = fnuz ? 0x80 : 0x7F;
    c.w(2, 0) = c.w(5, 1023) = c.w(7, 127) = c.w(9, 128) = nan;
    if (!fnuz) c.w(11, 500) = 0xFF;
    c.x(1, 700) = nan;
    EXPECT_EQ(projection_kernel(c, GetParam()), projection_model(c)) << fnuz;
  }
}

TEST(ProjectionMisuse, OtherBlocksAndSizesWriteNothing) {
  const ProjectionCase c(2, 16, 128, false, 0);
  const std::vector<u16> nothing(2 * 16, 0xAAAA);
  for (const std::uint32_t threads : {8U, 24U})
    EXPECT_EQ(projection_kernel(c, {64, 1, 1, threads, 16}), nothing) << threads;
  EXPECT_EQ(projection_kernel({2, 16, 96, false, 0}, {64, 1, 1, 32, 16}), nothing);
}

// ---------------------------------------------------------------------------------------------

/// Heads for qk_norm_rope: [q | k | v | index q | index k] rows.
struct HeadCase {
  i64 tokens;
  i32 q_heads, kv_heads, index_heads, head_dim, rotary_dim;
  i64 table_rows = 300, gap, element_stride;
  std::vector<u16> qkv, table;
  std::vector<u16> gamma[4];
  std::vector<i64> positions;

  i32 columns() const {
    return (q_heads + 2 * kv_heads + (index_heads > 0 ? index_heads + 1 : 0)) * head_dim;
  }
  i64 stride() const { return columns() * element_stride + gap; }

  HeadCase(i64 token_count, i32 queries, i32 keys, i32 index, i32 dim, i32 rotary, i64 row_gap,
           i64 stride_of_elements)
      : tokens(token_count),
        q_heads(queries),
        kv_heads(keys),
        index_heads(index),
        head_dim(dim),
        rotary_dim(rotary),
        gap(row_gap),
        element_stride(stride_of_elements) {
    Draws draws(static_cast<std::uint64_t>(dim + queries));
    for (i64 i = 0; i < tokens * stride(); ++i) qkv.push_back(encode_bf16(draws.number(-4, 3)));
    for (i64 i = 0; i < table_rows * rotary_dim; ++i)
      table.push_back(encode_bf16(draws.number(-6, -1)));
    for (auto& weights : gamma)
      for (i32 d = 0; d < head_dim; ++d) weights.push_back(encode_bf16(draws.number(-5, -1)));
    for (i64 t = 0; t < tokens; ++t) positions.push_back(draws.below(static_cast<int>(table_rows)));
    positions.back() = table_rows - 1;  // bug case N07
  }
};

/// A head of the projection, normed and rotated.
std::vector<float> head_model(const HeadCase& c, i64 token, i64 column, const std::vector<u16>& g) {
  std::vector<float> n, sums;
  for (i64 d = 0; d < c.head_dim; ++d)
    n.push_back(decode_bf16(c.qkv[static_cast<std::size_t>(
        token * c.stride() + (column * c.head_dim + d) * c.element_stride)]));
  for (std::size_t d = 0; d < n.size(); d += 4) sums.push_back(square_chain(&n[d], 4));
  const float rr = reciprocal_root(butterfly(sums) / static_cast<float>(c.head_dim) + 1e-6F);
  for (std::size_t d = 0; d < n.size(); ++d) n[d] = (n[d] * rr) * (decode_bf16(g[d]) + 1.0F);
  const std::vector<float> before = n;
  const auto half = static_cast<std::size_t>(c.rotary_dim / 2);
  const u16* row = &c.table[static_cast<std::size_t>(c.positions[static_cast<std::size_t>(token)] *
                                                     c.rotary_dim)];
  for (std::size_t d = 0; d < half; ++d) {
    const float cos = decode_bf16(row[d]), sin = decode_bf16(row[half + d]);
    n[d] = std::fma(before[d], cos, -(before[d + half] * sin));
    n[d + half] = std::fma(before[d + half], cos, before[d] * sin);
  }
  return n;
}

struct HeadOutputs {
  std::vector<u16> q, index_q;
  std::vector<std::uint32_t> k, index_k;
  bool operator==(const HeadOutputs&) const = default;
};

HeadOutputs heads_model(const HeadCase& c) {
  HeadOutputs out;
  for (i64 token = 0; token < c.tokens; ++token) {
    i64 column = 0;
    const auto each = [&](i32 heads, int gamma, const auto& store) {
      for (i32 head = 0; head < heads; ++head)
        for (const float value : head_model(c, token, column++, c.gamma[gamma])) store(value);
    };
    each(c.q_heads, 0, [&](float value) { out.q.push_back(encode_bf16(value)); });
    each(c.kv_heads, 1, [&](float value) { out.k.push_back(stored_bits(value)); });
    column += c.kv_heads;
    each(c.index_heads, 2, [&](float value) { out.index_q.push_back(encode_bf16(value)); });
    each(c.index_heads > 0 ? 1 : 0, 3,
         [&](float value) { out.index_k.push_back(stored_bits(value)); });
  }
  return out;
}

HeadOutputs heads_kernel(const HeadCase& c, const Launch& launch) {
  KernelBench bench(launch.wave, launch.alignment);
  const auto size = [&](i32 heads) {
    return static_cast<std::size_t>(c.tokens * heads * c.head_dim);
  };
  const auto qkv = bench.add(c.qkv);
  const auto positions = bench.add(c.positions);
  const auto table = bench.add(c.table);
  KernelBench::Buffer gamma[4];
  for (int i = 0; i < 4; ++i) gamma[i] = bench.add(c.gamma[i]);
  const auto q = bench.add(std::vector<u16>(size(c.q_heads), 0xAAAA));
  const auto index_q = bench.add(std::vector<u16>(size(c.index_heads), 0xAAAA));
  const auto k = bench.add(std::vector<std::uint32_t>(size(c.kv_heads), 7));
  const auto index_k = bench.add(std::vector<std::uint32_t>(size(c.index_heads > 0 ? 1 : 0), 7));
  bench.launch("monoref_qk_norm_rope", launch.grid(), qkv, c.stride(), c.element_stride, positions,
               table, i64{c.rotary_dim}, c.table_rows, gamma[0], gamma[1], gamma[2], gamma[3], q,
               i64{c.q_heads} * c.head_dim, index_q, i64{c.index_heads} * c.head_dim, k,
               i64{c.kv_heads} * c.head_dim, index_k, i64{c.head_dim}, c.tokens, c.q_heads,
               c.kv_heads, c.index_heads, c.head_dim, c.rotary_dim, 1e-6F);
  return {bench.read<u16>(q), bench.read<u16>(index_q), bench.read<std::uint32_t>(k),
          bench.read<std::uint32_t>(index_k)};
}

class LayerLaunch : public ::testing::TestWithParam<Launch> {};
INSTANTIATE_TEST_SUITE_P(Grids, LayerLaunch,
                         ::testing::Values(Launch{64, 1, 1, 64, 16}, Launch{64, 3, 2, 192, 8},
                                           Launch{64, 7, 1, 1024, 16}, Launch{32, 1, 1, 32, 16},
                                           Launch{32, 5, 2, 96, 8}),
                         launch_name);

TEST_P(LayerLaunch, QkNormRope) {
  // The model's rank, one with four index heads and strided rows, small heads, no index heads.
  const HeadCase cases[] = {{5, 16, 1, 1, 128, 64, 0, 1},
                            {3, 4, 2, 4, 128, 64, 6, 3},
                            {3, 2, 1, 1, 64, 24, 4, 1},
                            {2, 1, 1, 0, 32, 32, 0, 1}};
  for (const HeadCase& c : cases)
    EXPECT_EQ(heads_kernel(c, GetParam()), heads_model(c)) << c.head_dim << " " << c.element_stride;
}

TEST_P(LayerLaunch, QkNormRopeOfAPositionPastTheTableIsNotWritten) {
  HeadCase c(3, 2, 1, 1, 128, 64, 0, 1);
  c.positions = {-1, c.table_rows, i64{1} << 32};
  const HeadOutputs got = heads_kernel(c, GetParam());
  EXPECT_EQ(got.q, std::vector<u16>(got.q.size(), 0xAAAA));
  EXPECT_EQ(got.k, std::vector<std::uint32_t>(got.k.size(), 7));
  EXPECT_EQ(got.index_k, std::vector<std::uint32_t>(got.index_k.size(), 7));
}

// ---------------------------------------------------------------------------------------------

/// Tokens for kv_cache_insert: some share a page, one is padding, one lies beyond the cache.
struct InsertCase {
  i32 heads, head_dim, sides;
  bool reciprocal, unrounded, fnuz, saturates;
  i64 blocks = 3, gap = 8;
  std::vector<i64> slots{5, 6, 7, 8, -1, 130, 384, 200, i64{1} << 32, 15};
  float k_scale = 0.3F, v_scale = 0.007F;
  std::vector<float> k;
  std::vector<u16> v;

  i64 rows() const { return static_cast<i64>(slots.size()); }
  i64 width() const { return i64{heads} * head_dim; }
  std::size_t cache_elements() const {
    return static_cast<std::size_t>(blocks * 128 * width() * sides);
  }

  InsertCase(i32 head_count, i32 dim, i32 side_count, int options)
      : heads(head_count),
        head_dim(dim),
        sides(side_count),
        reciprocal((options & 1) != 0),
        unrounded((options & 2) != 0),
        fnuz((options & 4) != 0),
        saturates((options & 8) != 0) {
    // The last slot belongs to a token in half the cases; a padding row must not get there in any.
    if (fnuz) slots.push_back(blocks * 128 - 1);
    Draws draws(static_cast<std::uint64_t>(options));
    for (i64 i = 0; i < rows() * (width() + gap); ++i) {
      k.push_back(draws.number(-12, 8));
      v.push_back(encode_bf16(draws.number(-12, 4)));
    }
  }
};

/// What one side's elements become: by slot, head and dim.
template <class Store>
void for_each_stored(const InsertCase& c, const Store& store) {
  for (i64 row = 0; row < c.rows(); ++row) {
    const i64 slot = c.slots[static_cast<std::size_t>(row)];
    if (slot < 0 || slot >= c.blocks * 128) continue;
    for (i64 head = 0; head < c.heads; ++head)
      for (i64 d = 0; d < c.head_dim; ++d)
        store(slot, head, d,
              static_cast<std::size_t>(row * (c.width() + c.gap) + head * c.head_dim + d));
  }
}

/// Element offsets of K and V in the page-16 layout: x is 16 bytes' worth of elements.
struct Place {
  std::size_t k, v;
};
Place place_of(const InsertCase& c, i64 slot, i64 head, i64 d, i64 x) {
  const i64 page = slot / 128 * 8 * c.sides + slot % 128 / 16, t = slot % 16;
  const i64 start = (page * c.heads + head) * c.head_dim * 16;
  const i64 v_view = i64{8} * (c.sides - 1) * c.heads * c.head_dim * 16;
  return {static_cast<std::size_t>(start + d / x * 16 * x + t * x + d % x),
          static_cast<std::size_t>(v_view + start + t / x * c.head_dim * x + d * x + t % x)};
}

/// The caches after an insertion; with interleaved sides both are the one buffer.
template <class Element>
struct Caches {
  std::vector<Element> k, v;
  bool operator==(const Caches&) const = default;
};

template <class Element, class Key, class Value>
Caches<Element> insert_model(const InsertCase& c, Element poison, const Key& key,
                             const Value& value) {
  Caches<Element> caches{std::vector<Element>(c.cache_elements(), poison),
                         std::vector<Element>(c.cache_elements(), poison)};
  auto& v_cache = c.sides == 2 ? caches.k : caches.v;
  for_each_stored(c, [&](i64 slot, i64 head, i64 d, std::size_t from) {
    const Place place = place_of(c, slot, head, d, 16 / static_cast<i64>(sizeof(Element)));
    caches.k[place.k] = key(c.k[from]);
    v_cache[place.v] = value(c.v[from]);
  });
  if (c.sides == 2) caches.v = caches.k;
  return caches;
}

float scaled(const InsertCase& c, float x, float scale) {
  return c.reciprocal ? x * (1.0F / scale) : x / scale;
}
float key_source(const InsertCase& c, float x) {
  return c.unrounded ? x : decode_bf16(encode_bf16(x));
}

template <class Element, class... Options>
Caches<Element> insert_kernel(const std::string& name, const InsertCase& c, const Launch& launch,
                              Element poison, Options... options) {
  KernelBench bench(launch.wave);  // pages start on multiples of 16
  const auto k = bench.add(c.k);
  const auto v = bench.add(c.v);
  const auto slots = bench.add(c.slots);
  const auto k_cache = bench.add(std::vector<Element>(c.cache_elements(), poison));
  const auto v_plane = bench.add(std::vector<Element>(c.cache_elements(), poison));
  const auto v_cache = c.sides == 2 ? k_cache : v_plane;
  bench.launch(name, launch.grid(), k, c.width() + c.gap, v, c.width() + c.gap, c.rows(), slots,
               i64{1}, c.rows(), k_cache, v_cache, c.blocks * 128, c.heads, c.head_dim, c.sides,
               options...);
  return {bench.read<Element>(k_cache), bench.read<Element>(v_cache)};
}

TEST_P(LayerLaunch, KvCacheInsertFp8) {
  for (int options = 0; options < 16; ++options) {
    const InsertCase c(1 + options % 3, options % 2 == 0 ? 128 : 48, 1 + options / 2 % 2, options);
    const E4m3Model format(c.fnuz, c.saturates);
    const auto expected = insert_model<u8>(
        c, 0x55, [&](float x) { return format.encode(scaled(c, key_source(c, x), c.k_scale)); },
        [&](u16 bits) { return format.encode(scaled(c, decode_bf16(bits), c.v_scale)); });
    const auto got =
        insert_kernel<u8>("monoref_kv_cache_insert_fp8", c, GetParam(), 0x55, c.k_scale, c.v_scale,
                          i32{c.reciprocal}, i32{c.unrounded}, i32{c.fnuz}, i32{c.saturates});
    EXPECT_EQ(got, expected) << "options " << options;
  }
}

TEST_P(LayerLaunch, KvCacheInsertBf16) {
  for (const i32 sides : {1, 2}) {
    const InsertCase c(2, 64, sides, 0);
    const auto expected = insert_model<u16>(
        c, 0x5555, [](float x) { return encode_bf16(x); }, [](u16 bits) { return bits; });
    EXPECT_EQ(insert_kernel<u16>("monoref_kv_cache_insert_bf16", c, GetParam(), 0x5555), expected);
  }
}

/// Index keys of `dim` into blocks of 128 with gaps behind tokens and blocks.
template <class Element, class Key, class... Options>
void check_index_insert(const std::string& name, const InsertCase& c, i32 dim, i64 token_gap,
                        const Launch& launch, const Key& key, Options... options) {
  const i64 token_stride = dim + token_gap, block_stride = 128 * token_stride + 16;
  std::vector<Element> expected(static_cast<std::size_t>(c.blocks * block_stride), 0x55);
  KernelBench bench(launch.wave, launch.alignment);
  const auto keys = bench.add(c.k);
  const auto slots = bench.add(c.slots);
  const auto cache = bench.add(expected);
  bench.launch(name, grid_of(launch.blocks, launch.threads), keys, c.width() + c.gap, c.rows(),
               slots, i64{1}, c.rows(), cache, block_stride, token_stride, c.blocks * 128, i32{128},
               dim, options...);
  for_each_stored(c, [&](i64 slot, i64, i64 d, std::size_t from) {
    if (d < dim)
      expected[static_cast<std::size_t>(slot / 128 * block_stride + slot % 128 * token_stride +
                                        d)] = key(c.k[from]);
  });
  EXPECT_EQ(bench.read<Element>(cache), expected) << name << " of " << dim;
}

TEST_P(LayerLaunch, IndexKeyInsert) {
  for (int options = 0; options < 16; ++options) {
    const InsertCase c(1, 128, 1, options);
    const E4m3Model format(c.fnuz, c.saturates);
    const i32 dim = options % 4 == 0 ? 41 : 128;
    check_index_insert<u8>(
        "monoref_index_key_insert_fp8", c, dim, options % 3, GetParam(),
        [&](float x) { return format.encode(key_source(c, x)); }, i32{c.unrounded}, i32{c.fnuz},
        i32{c.saturates});
    check_index_insert<u16>("monoref_index_key_insert_bf16", c, dim, options % 3, GetParam(),
                            [](float x) { return encode_bf16(x); });
  }
}

}  // namespace
}  // namespace monoref::device
