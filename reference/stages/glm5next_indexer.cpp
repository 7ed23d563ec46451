#include "reference/stages/glm5next_indexer.hpp"

#include <algorithm>
#include <limits>

namespace monoref {
namespace {

constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kScaleBytesFp8 = 4;

constexpr std::string_view kIndices = "decode_scatter_indices";
constexpr std::string_view kTopkLens = "decode_topk_seq_lens";
constexpr std::string_view kCausalFill = "short_decode_causal_fill";
constexpr std::string_view kWorkspace = "gather_workspace_shapes";
constexpr std::string_view kCacheView = "kv_cache_as_quant_view";

void check_mxfp4_head(std::string_view stage, std::int64_t head_dim) {
  if (head_dim % kMxfp4BlockSize != 0)
    refuse("{}: head_dim is {}, must be a multiple of the MXFP4 block {}", stage, head_dim,
           kMxfp4BlockSize);
}

void check_head_dim(std::string_view stage, std::int64_t head_dim) {
  if (head_dim < 1 || head_dim > kMaxInt32)
    refuse("{}: head_dim is {}, limits 1 and {}", stage, head_dim, kMaxInt32);
}

void check_positions(std::string_view stage, View<const std::int64_t, 1> positions,
                     std::int64_t count) {
  if (positions.dim(0) < count)
    refuse("{}: positions has {} entries, must have at least {}, one a token", stage,
           positions.dim(0), count);
  for (std::int64_t token = 0; token < count; ++token) {
    if (positions(token) < -1 || positions(token) >= kMaxInt32)
      refuse("{}: positions[{}] is {}, limits -1 and {}", stage, token, positions(token),
             kMaxInt32 - 1);
  }
}

void check_topk(const DecodeTopkSeqLensInput& input, View<std::int32_t, 1> topk_seq_lens) {
  if (input.batch_size < 0 || input.batch_size > kMaxInt32)
    refuse("{}: batch_size is {}, limits 0 and {}", kTopkLens, input.batch_size, kMaxInt32);
  if (input.next_n < 1 || input.next_n > kMaxInt32)
    refuse("{}: next_n is {}, limits 1 and {}", kTopkLens, input.next_n, kMaxInt32);
  const std::int64_t rows = input.batch_size * input.next_n;
  check_extent(kTopkLens, "topk_seq_lens", topk_seq_lens.dim(0), rows);
  if (!input.requires_padding) {
    check_positions(kTopkLens, input.positions, rows);
    return;
  }
  check_extent(kTopkLens, "decode_lens", input.decode_lens.dim(0), input.batch_size);
  check_decode_grid(kTopkLens, input.decode_lens, input.num_decode_tokens, input.next_n);
  check_positions(kTopkLens, input.positions, input.num_decode_tokens);
}

}  // namespace

void check_decode_grid(std::string_view stage, View<const std::int32_t, 1> decode_lens,
                       std::int64_t tokens, std::int64_t row_length) {
  std::int64_t sum = 0;
  for (std::int64_t request = 0; request < decode_lens.dim(0); ++request) {
    if (decode_lens(request) < 0 || decode_lens(request) > row_length)
      refuse("{}: decode_lens[{}] is {}, limits 0 and {}", stage, request, decode_lens(request),
             row_length);
    sum += decode_lens(request);
  }
  if (sum != tokens)
    refuse("{}: num_decode_tokens is {}, must be {}, the sum of decode_lens", stage, tokens, sum);
}

void check_decode_requests(std::string_view stage, std::int64_t requests, LengthRule lengths) {
  if (requests == 0 && lengths == LengthRule::kAsSeed)
    refuse("{}: decode_lens has 0 requests, limit 1: the original raises an error", stage);
}

void decode_scatter_indices(const DecodeScatterIndicesInput& input,
                            const DecodeScatterIndicesOutput& output) {
  check_decode_requests(kIndices, input.decode_lens.dim(0), input.lengths);
  check_decode_grid(kIndices, input.decode_lens, input.num_decode_tokens, kMaxInt32);
  check_extent(kIndices, "req_id", output.req_id.dim(0), input.num_decode_tokens);
  check_extent(kIndices, "intra", output.intra.dim(0), input.num_decode_tokens);
  std::int64_t token = 0;
  for (std::int64_t request = 0; request < input.decode_lens.dim(0); ++request) {
    for (std::int64_t place = 0; place < input.decode_lens(request); ++place, ++token) {
      output.req_id(token) = request;
      output.intra(token) = place;
    }
  }
}

void decode_topk_seq_lens(const DecodeTopkSeqLensInput& input,
                          View<std::int32_t, 1> topk_seq_lens) {
  check_topk(input, topk_seq_lens);
  std::int64_t token = 0;
  for (std::int64_t request = 0; request < input.batch_size; ++request) {
    const std::int64_t live = input.requires_padding ? input.decode_lens(request) : input.next_n;
    for (std::int64_t place = 0; place < input.next_n; ++place) {
      const std::int64_t position = place < live ? input.positions(token++) : -1;
      topk_seq_lens(request * input.next_n + place) = static_cast<std::int32_t>(position + 1);
    }
  }
}

bool short_decode_causal_fill(const ShortDecodeCausalFillInput& input,
                              View<std::int32_t, 2> topk_buffer) {
  const std::int64_t tokens = input.num_decode_tokens;
  if (tokens < 0) refuse("{}: num_decode_tokens is {}, limit 0", kCausalFill, tokens);
  if (input.positions.dim(0) == 0 || input.max_seq_len > topk_buffer.dim(1)) return false;
  if (input.positions.dim(0) < tokens)
    refuse("{}: positions has {} entries, must have at least {}, one a token", kCausalFill,
           input.positions.dim(0), tokens);
  if (topk_buffer.dim(0) < tokens)
    refuse("{}: topk_buffer has {} rows, must have at least {}, one a token", kCausalFill,
           topk_buffer.dim(0), tokens);
  check_positions(kCausalFill, input.positions, tokens);
  for (std::int64_t token = 0; token < tokens; ++token) {
    for (std::int64_t column = 0; column < topk_buffer.dim(1); ++column) {
      topk_buffer(token, column) =
          column <= input.positions(token) ? static_cast<std::int32_t>(column) : -1;
    }
  }
  return true;
}

GatherWorkspaceShapes gather_workspace_shapes(std::int64_t total_seq_lens, std::int64_t head_dim,
                                              IndexerCacheFormat format, DType fp8_type) {
  if (total_seq_lens < 0) refuse("{}: total_seq_lens is {}, limit 0", kWorkspace, total_seq_lens);
  check_head_dim(kWorkspace, head_dim);
  if (format == IndexerCacheFormat::kMxfp4) {
    check_mxfp4_head(kWorkspace, head_dim);
    return {{total_seq_lens, head_dim / 2},
            {total_seq_lens, head_dim / kMxfp4BlockSize},
            DType::kUInt8,
            DType::kUInt8};
  }
  if (dtype_size(fp8_type) != 1)
    refuse("{}: fp8_type {} has {} bytes, limit 1", kWorkspace, dtype_name(fp8_type),
           dtype_size(fp8_type));
  return {{total_seq_lens, head_dim}, {total_seq_lens, kScaleBytesFp8}, fp8_type, DType::kUInt8};
}

Layout kv_cache_as_quant_view(const Layout& kv_cache, DType type, std::int64_t head_dim,
                              IndexerCacheFormat format) {
  if (kv_cache.dims.size() != 3)
    refuse("{}: kv_cache has {} axes, must have 3", kCacheView, kv_cache.dims.size());
  check_head_dim(kCacheView, head_dim);
  const std::int64_t blocks = kv_cache.dims[0];
  const std::int64_t block_size = kv_cache.dims[1];
  Layout view = kv_cache;  // the storage behind it stays as it is
  if (format == IndexerCacheFormat::kFp8) {
    const std::int64_t width = kv_cache.dims[2];
    view.dims = {blocks, block_size, 1, width};
    view.strides = {kv_cache.strides[0], kv_cache.strides[1], width * kv_cache.strides[2],
                    kv_cache.strides[2]};
    return view;
  }

  if (type != DType::kUInt8)
    refuse("{}: kv_cache is {}, must be uint8 for pages of MXFP4", kCacheView, dtype_name(type));
  check_mxfp4_head(kCacheView, head_dim);
  const std::int64_t key_bytes = head_dim / 2 + head_dim / kMxfp4BlockSize;
  if (block_size > 0 && key_bytes > kv_cache.strides[0] / block_size)
    refuse("{}: kv_cache has a stride of {} bytes, must have at least {}, {} keys of {}",
           kCacheView, kv_cache.strides[0], block_size * key_bytes, block_size, key_bytes);
  view.dims = {blocks, block_size, 1, key_bytes};
  view.strides = {kv_cache.strides[0], key_bytes, key_bytes, 1};
  return view;
}

}  // namespace monoref
