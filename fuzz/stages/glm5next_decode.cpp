// Part "decode" of glm5next_indexer: decode tokens scattered into the padded grid, lengths of the
// top-k rows, and exact rows for short contexts.
#include <algorithm>
#include <limits>
#include <numeric>

#include "device/launch/glm5next_indexer.hpp"
#include "fuzz/stages/glm5next_indexer.hpp"
#include "fuzz/stages/indexer_content.hpp"
#include "reference/stages/glm5next_indexer.hpp"

namespace monoref {
namespace {

constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();
constexpr DType kElementTypes[] = {DType::kFloat32, DType::kUInt8, DType::kBFloat16, DType::kInt32,
                                   DType::kInt64};

Tensor drawn_tokens(const Params& params, std::int64_t count, CounterRandom& random) {
  const std::int64_t inner = params["inner"];
  Tensor tokens(kElementTypes[params["element"]],
                Layout::strided({count, inner}, {inner + params["token_gap"], 1}));
  for (const Extent& extent : tokens.layout().extents)
    for (std::byte& byte : tokens.bytes(extent))
      byte = static_cast<std::byte>(random.bits32() & 0xFF);
  return tokens;
}

std::vector<std::int64_t> drawn_positions(std::string_view kind, std::int64_t count,
                                          CounterRandom& random) {
  std::vector<std::int64_t> positions;
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t position = random.between(0, 5000);
    if (kind == "nobody" && random.once_in(2)) position = -1;
    if (kind == "largest") position = kInt32Max - 1 - random.below(3);
    positions.push_back(position);
  }
  return positions;
}

/// The buffer of selected tokens with what an earlier step left in it.
Tensor drawn_topk_buffer(const Params& params, std::int64_t rows, CounterRandom& random) {
  const std::int64_t width = params["topk_tokens"];
  std::vector<std::int32_t> stale;
  for (std::int64_t i = 0; i < rows * width; ++i)
    stale.push_back(static_cast<std::int32_t>(random.between(0, 9000)));
  return padded_rows(DType::kInt32, rows, width, params["row_gap"], stale);
}

/// Positions of a step whose longest sequence has `longest` tokens; now and then none.
std::vector<std::int64_t> fill_positions(std::int64_t rows, std::int64_t longest,
                                         CounterRandom& random) {
  std::vector<std::int64_t> positions;
  for (std::int64_t row = 0; row < rows; ++row)
    positions.push_back(random.once_in(6) ? longest - 1 : random.between(-1, longest - 1));
  return positions;
}

std::string_view applicable_defect(const Params& params) {
  const std::string_view defect = params.word("defect");
  if (defect == "pool_incomplete" || defect == "keys_past_page") return "none";
  if (params["requests"] == 0 && (defect == "length_past_grid" || defect == "negative_length"))
    return "none";
  return defect;
}

void plant_defect(const std::string& defect, std::int64_t next_n,
                  std::vector<std::int64_t>& lengths, std::int64_t& tokens) {
  if (defect == "length_past_grid") {
    tokens += next_n + 1 - lengths.back();
    lengths.back() = next_n + 1;
  }
  if (defect == "negative_length") lengths.back() = -1;
  if (defect == "sum_differs") tokens += 1;
}

Case build(const Params& params, std::uint64_t seed) {
  CounterRandom length_random(seed, "decode_lens");
  CounterRandom token_random(seed, "tokens");
  CounterRandom position_random(seed, "positions");
  CounterRandom fill_random(seed, "fill_positions");
  CounterRandom buffer_random(seed, "topk_buffer");
  const std::int64_t requests = params["requests"];
  const std::int64_t next_n = params["next_n"];
  const auto mix = static_cast<QueryMix>(params["query_mix"]);
  auto lengths = make_query_lens(mix, requests, next_n, length_random);
  std::int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  const bool padded = mix != QueryMix::kUniform || params["padded_though_uniform"] != 0;
  const std::string defect(applicable_defect(params));
  plant_defect(defect, next_n, lengths, tokens);
  // A uniform batch is read as the grid it is.
  const std::int64_t read = padded ? tokens : std::max(tokens, requests * next_n);
  const std::int64_t width = params["topk_tokens"];
  const std::int64_t longest = width + (params["past_topk"] != 0 ? 1 : -length_random.below(width));
  Case item;
  item.scalars = {{"part", std::string("decode")},
                  {"num_decode_tokens", tokens},
                  {"next_n", next_n},
                  {"requires_padding", std::int64_t{padded}},
                  {"fill_max_seq_len", longest},
                  {"pad", static_cast<std::int64_t>(token_random.bits64() >> 1)},
                  {"defect", defect}};
  item.inputs = {
      {"decode_lens", vector_of(DType::kInt32, lengths)},
      {"tokens", drawn_tokens(params, tokens, token_random)},
      {"positions", strided_vector(DType::kInt64,
                                   drawn_positions(params.word("positions"),
                                                   read + params["more_tokens"], position_random),
                                   params["vector_step"])},
      {"fill_positions", vector_of(DType::kInt64, fill_positions(tokens + params["more_tokens"],
                                                                 longest, fill_random))},
      {"topk_buffer", drawn_topk_buffer(params, tokens + params["more_tokens"], buffer_random)}};
  return item;
}

DecodeTopkSeqLensInput topk_lens_input(const Case& item) {
  const auto lengths = item.input("decode_lens").view<std::int32_t, 1>();
  return {.positions = item.input("positions").view<std::int64_t, 1>(),
          .decode_lens = lengths,
          .num_decode_tokens = item.integer("num_decode_tokens"),
          .batch_size = lengths.dim(0),
          .next_n = item.integer("next_n"),
          .requires_padding = item.integer("requires_padding") != 0};
}

ShortDecodeCausalFillInput causal_fill_input(const Case& item) {
  return {.positions = item.input("fill_positions").view<std::int64_t, 1>(),
          .num_decode_tokens = item.integer("num_decode_tokens"),
          .max_seq_len = item.integer("fill_max_seq_len")};
}

/// Whether the rows of the step are exact: top-k would select every token.
bool is_filled(const Case& item) {
  return item.input("fill_positions").dim(0) > 0 &&
         item.integer("fill_max_seq_len") <= item.input("topk_buffer").dim(1);
}

std::vector<OutputSpec> outputs(const Case& item) {
  const std::int64_t tokens = item.integer("num_decode_tokens");
  const std::int64_t requests = item.input("decode_lens").dim(0);
  const std::int64_t next_n = item.integer("next_n");
  const Tensor& rows = item.input("tokens");
  const Tensor& buffer = item.input("topk_buffer");
  check_decode_requests("glm5next_indexer", requests, item.contract.decode_lengths);
  check_decode_grid("glm5next_indexer", item.input("decode_lens").view<std::int32_t, 1>(), tokens,
                    next_n);
  return {{"req_id", DType::kInt64, Layout::dense({tokens}), {"token"}, ""},
          {"intra", DType::kInt64, Layout::dense({tokens}), {"token"}, ""},
          {"scattered",
           rows.type(),
           Layout::dense({requests, next_n, rows.dim(1)}),
           {"request", "token", "element"},
           ""},
          {"topk_seq_lens", DType::kInt32, Layout::dense({requests * next_n}), {"row"}, ""},
          {"topk_buffer", DType::kInt32, buffer.layout(), {"row", "column"}, "topk_buffer"},
          host_numbers("filled", 1, "value")};
}

template <class T>
void scatter_as(const Case& item, Tensor& grid) {
  scatter_decode_tokens_by_request<T>(
      {item.input("decode_lens").view<std::int32_t, 1>(), item.input("tokens").view<T, 2>(),
       static_cast<T>(item.integer("pad"))},
      grid.view<T, 3>());
}

void scatter(const Case& item, Tensor& grid) {
  switch (grid.element_size()) {
    case 1:
      return scatter_as<std::uint8_t>(item, grid);
    case 2:
      return scatter_as<std::uint16_t>(item, grid);
    case 4:
      return scatter_as<std::uint32_t>(item, grid);
    default:
      return scatter_as<std::uint64_t>(item, grid);
  }
}

void reference(const Case& item, Outputs& out) {
  decode_scatter_indices({item.input("decode_lens").view<std::int32_t, 1>(),
                          item.integer("num_decode_tokens"), item.contract.decode_lengths},
                         {writable(out, "req_id").view<std::int64_t, 1>(),
                          writable(out, "intra").view<std::int64_t, 1>()});
  scatter(item, writable(out, "scattered"));
  decode_topk_seq_lens(topk_lens_input(item),
                       writable(out, "topk_seq_lens").view<std::int32_t, 1>());
  const bool filled = short_decode_causal_fill(
      causal_fill_input(item), writable(out, "topk_buffer").view<std::int32_t, 2>());
  put_numbers(out, "filled", {filled ? 1 : 0});
}

template <class T>
void launch_scatter(const Case& item, const Launcher& launcher) {
  const Tensor& tokens = item.input("tokens");
  launcher.enqueue(device::launch::DecodeScatter<T>{
      .tokens = launcher.address<const T>("tokens"),
      .token_stride = tokens.layout().strides[0],
      .decode_lens = launcher.address<const std::int32_t>("decode_lens"),
      .rows = launcher.address<T>("out.scattered"),
      .requests = item.input("decode_lens").dim(0),
      .lmax = item.integer("next_n"),
      .inner = tokens.dim(1),
      .token_count = tokens.dim(0),
      .pad = static_cast<T>(item.integer("pad"))});
}

void launch_scatter_as(std::size_t element_size, const Case& item, const Launcher& launcher) {
  switch (element_size) {
    case 1:
      return launch_scatter<std::uint8_t>(item, launcher);
    case 2:
      return launch_scatter<std::uint16_t>(item, launcher);
    case 4:
      return launch_scatter<std::uint32_t>(item, launcher);
    default:
      return launch_scatter<std::uint64_t>(item, launcher);
  }
}

void launch(const Case& item, const Launcher& launcher) {
  const auto* lengths = launcher.address<const std::int32_t>("decode_lens");
  const std::int64_t requests = item.input("decode_lens").dim(0);
  const std::int64_t tokens = item.integer("num_decode_tokens");
  const Tensor& positions = item.input("positions");
  const bool padded = item.integer("requires_padding") != 0;
  launcher.enqueue(
      device::launch::DecodeScatterIndices{.decode_lens = lengths,
                                           .req_id = launcher.address<std::int64_t>("out.req_id"),
                                           .intra = launcher.address<std::int64_t>("out.intra"),
                                           .requests = requests,
                                           .tokens = tokens});
  launch_scatter_as(item.input("tokens").element_size(), item, launcher);
  launcher.enqueue(device::launch::DecodeTopkSeqLens{
      .positions = launcher.address<const std::int64_t>("positions"),
      .position_stride = positions.layout().strides[0],
      .decode_lens = lengths,
      .topk_seq_lens = launcher.address<std::int32_t>("out.topk_seq_lens"),
      .requests = requests,
      .next_n = item.integer("next_n"),
      .tokens = padded ? tokens : positions.dim(0),
      .padded = option(padded)});
  if (!is_filled(item)) return;
  const Layout& buffer = item.input("topk_buffer").layout();
  launcher.enqueue(device::launch::FillCausalIndices{
      .positions = launcher.address<const std::int64_t>("fill_positions"),
      .topk_indices = launcher.address<std::int32_t>("out.topk_buffer"),
      .row_stride = buffer.strides[0],
      .rows = tokens,
      .width = buffer.dims[1]});
}

/// The bits of an element of a contiguous row.
std::uint64_t element_bits(const Tensor& tensor, std::int64_t offset) {
  const auto size = static_cast<std::int64_t>(tensor.element_size());
  std::uint64_t bits = 0;
  std::copy_n(tensor.base() + offset * size, size, reinterpret_cast<std::byte*>(&bits));
  return bits;
}

/// Unpacking the grid by the indices gives the tokens back; what no token has is padding.
std::optional<std::string> packing_can_be_undone(const Case& item, const Outputs& out,
                                                 const Evaluate&) {
  const Tensor& tokens = item.input("tokens");
  const Tensor& grid = output(out, "scattered");
  const auto requests = numbers_of(output(out, "req_id"));
  const auto places = numbers_of(output(out, "intra"));
  const std::int64_t inner = tokens.dim(1);
  std::vector<bool> live(static_cast<std::size_t>(grid.dim(0) * grid.dim(1)));
  for (std::size_t token = 0; token < requests.size(); ++token) {
    const std::int64_t row = requests[token] * grid.dim(1) + places[token];
    if (row < 0 || row >= std::ssize(live) || live[static_cast<std::size_t>(row)])
      return fmt::format("token {} has no place of its own in the grid", token);
    live[static_cast<std::size_t>(row)] = true;
    for (std::int64_t i = 0; i < inner; ++i)
      if (element_bits(grid, row * inner + i) !=
          element_bits(tokens, static_cast<std::int64_t>(token) * tokens.layout().strides[0] + i))
        return fmt::format("element {} of token {} is lost in the grid", i, token);
  }
  const std::uint64_t mask = ~std::uint64_t{0} >> (64 - 8 * grid.element_size());
  const std::uint64_t pad = static_cast<std::uint64_t>(item.integer("pad")) & mask;
  for (std::int64_t row = 0; row < std::ssize(live); ++row)
    for (std::int64_t i = 0; i < inner && !live[static_cast<std::size_t>(row)]; ++i)
      if (element_bits(grid, row * inner + i) != pad)
        return fmt::format("row {} of the grid has no token and no padding", row);
  return std::nullopt;
}

/// The case with one request alone, its tokens with it.
Case alone(const Case& item, std::int64_t request, std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  Case part = item;
  set_input(part, "decode_lens", take_rows(item.input("decode_lens"), {request}));
  set_input(part, "tokens", take_rows(item.input("tokens"), tokens));
  set_input(part, "positions", take_rows(item.input("positions"), tokens));
  set_input(part, "fill_positions", take_rows(item.input("fill_positions"), tokens));
  set_input(part, "topk_buffer", take_rows(item.input("topk_buffer"), tokens));
  set_scalar(part, "num_decode_tokens", count);
  set_scalar(part, "requires_padding", std::int64_t{1});
  return part;
}

/// A request's rows are those of the request alone, whatever stands before it in the batch.
std::optional<std::string> requests_can_be_alone(const Case& item, const Outputs& out,
                                                 const Evaluate& evaluate) {
  const auto lengths = numbers_of(item.input("decode_lens"));
  const std::int64_t next_n = item.integer("next_n");
  std::int64_t first = 0;
  for (std::int64_t request = 0; request < std::min<std::int64_t>(std::ssize(lengths), 8);
       ++request) {
    const std::int64_t count = lengths[static_cast<std::size_t>(request)];
    const Outputs got = evaluate(alone(item, request, first, count));
    if (!same_row(output(out, "scattered"), request, output(got, "scattered"), 0))
      return fmt::format("the grid of request {} changes when it is alone", request);
    for (std::int64_t t = 0; t < next_n; ++t)
      if (!same_row(output(out, "topk_seq_lens"), request * next_n + t,
                    output(got, "topk_seq_lens"), t))
        return fmt::format("length {} of request {} changes when it is alone", t, request);
    first += count;
  }
  return std::nullopt;
}

/// A filled row names each token up to its position once; all other rows keep what they held.
std::optional<std::string> rows_are_causal(const Case& item, const Outputs& out, const Evaluate&) {
  const auto before = item.input("topk_buffer").view<std::int32_t, 2>();
  const auto after = output(out, "topk_buffer").view<std::int32_t, 2>();
  const auto positions = numbers_of(item.input("fill_positions"));
  const std::int64_t filled = is_filled(item) ? item.integer("num_decode_tokens") : 0;
  for (std::int64_t row = 0; row < after.dim(0); ++row) {
    std::int64_t selected = 0;
    for (std::int64_t column = 0; column < after.dim(1); ++column) {
      if (row >= filled && after(row, column) != before(row, column))
        return fmt::format("row {} belongs to no decode token and has changed", row);
      selected += after(row, column) == column;
      if (row < filled && after(row, column) != column && after(row, column) != -1)
        return fmt::format("row {} has {} in column {}", row, after(row, column), column);
    }
    if (row < filled &&
        selected != std::min(after.dim(1), positions[static_cast<std::size_t>(row)] + 1))
      return fmt::format("row {} at position {} names {} tokens", row,
                         positions[static_cast<std::size_t>(row)], selected);
  }
  return std::nullopt;
}

}  // namespace

StagePart glm5next_decode_part() {
  return {
      build,
      outputs,
      reference,
      launch,
      {{"round_trip", "unpacking the grid gives the tokens back (T03)", packing_can_be_undone},
       {"row_independence", "a request alone has the rows that it has in the batch",
        requests_can_be_alone},
       {"causal_rows", "exact rows name each token up to their position once", rows_are_causal}}};
}

Case adopt_glm5next_decode(const RecordedCase& recorded) {
  Case item;
  item.scalars = {{"part", std::string("decode")},
                  {"num_decode_tokens", recorded.integer("num_decode_tokens")},
                  {"next_n", recorded.integer("next_n")},
                  {"requires_padding", recorded.integer("requires_padding")},
                  {"fill_max_seq_len", recorded.integer("fill_max_seq_len")},
                  // The recorder packed float32 tokens with the pad value of the positions, -1.
                  {"pad", std::int64_t{0xBF800000}}};
  item.inputs = recorded.inputs;
  for (const char* name : {"req_id", "intra", "scattered", "topk_seq_lens", "topk_buffer"})
    item.expected.push_back({name, recorded.output(name), std::nullopt});
  item.expected.push_back(
      {"filled", vector_of(DType::kInt64, {recorded.integer("filled")}), std::nullopt});
  return item;
}

}  // namespace monoref
