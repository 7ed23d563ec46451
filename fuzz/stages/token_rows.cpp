// token_rows: generator, reference and kernel side by side.
#include "reference/stages/token_rows.hpp"

#include <algorithm>
#include <numeric>

#include "device/launch/token_rows.hpp"
#include "fuzz/inputs.hpp"
#include "fuzz/laws/permute.hpp"
#include "fuzz/stages/content.hpp"

namespace monoref {
namespace {

/// What lengths token_rows may see: also ones that become negative, and the ends of int32.
Dimension token_lengths_dimension() {
  return Dimension::choice("lengths", {"ordinary", "empty", "short", "negative", "largest"},
                           "sequence lengths of the batch");
}

std::int64_t length_of(std::string_view kind, std::int64_t q, CounterRandom& random) {
  if (kind == "empty") return random.once_in(2) ? 0 : random.between(0, 300);
  if (kind == "short") return random.below(q + 1);
  if (kind == "negative") return random.between(-300, 0);
  if (kind == "largest") return INT32_MAX - random.below(3);
  return random.between(1, 5000);
}

/// With one query token the tables are taken as they are: nothing about them can be wrong.
std::string applicable_defect(const Params& params) {
  const std::string defect(params.word("defect"));
  if (defect == "q_len_zero") return defect;
  return params["q_len"] > 1 && params["requests"] > 0 ? defect : "none";
}

Case build(const Params& params, const Contract&, std::uint64_t seed) {
  const std::int64_t q = params["q_len"];
  const std::int64_t requests = params["requests"];
  const std::int64_t rows = requests + params["padded_rows"];
  const std::int64_t width = params["width"];
  CounterRandom ids(seed, "block_table");
  CounterRandom lengths(seed, "seq_lens");
  std::vector<std::int64_t> seq_lens;
  for (std::int64_t row = 0; row < rows; ++row)
    seq_lens.push_back(row < requests ? length_of(params.word("lengths"), q, lengths) : 0);
  const auto table =
      make_block_ids(static_cast<TableIds>(params["table_ids"]), rows * width, INT32_MAX, ids);
  const std::string defect = applicable_defect(params);
  if (defect == "length_below_int32") seq_lens[0] = INT32_MIN;
  // A step's tokens need not fill the last request; such rows do not exist.
  const std::int64_t tokens = requests * q + params["left_over"] % q;
  Case item;
  item.scalars = {{"q", defect == "q_len_zero" ? 0 : q},
                  {"n", defect == "missing_requests" ? (rows + 1) * q : tokens},
                  {"out_row_gap", params["out_row_gap"]},
                  {"defect", defect}};
  item.inputs = {
      {"block_table", padded_rows(DType::kInt32, rows, width, params["table_row_gap"], table)},
      {"seq_lens", strided_vector(DType::kInt32, seq_lens, params["seq_lens_stride"])}};
  return item;
}

TokenRowsInput input_of(const Case& item) {
  return {item.input("block_table").view<std::int32_t, 2>(),
          item.input("seq_lens").view<std::int32_t, 1>(), item.integer("q"), item.integer("n")};
}

std::vector<OutputSpec> outputs(const Case& item) {
  const TokenRowsShape shape = token_rows_shape(input_of(item));
  const std::int64_t gap = row_gap(item, "out_row_gap");
  return {{"block_table",
           DType::kInt32,
           Layout::strided({shape.block_table[0], shape.block_table[1]},
                           {shape.block_table[1] + gap, 1}),
           {"row", "column"},
           ""},
          {"seq_lens", DType::kInt32, Layout::dense({shape.seq_lens[0]}), {"row"}, ""}};
}

void reference(const Case& item, Outputs& out) {
  token_rows(input_of(item),
             {out[0].tensor.view<std::int32_t, 2>(), out[1].tensor.view<std::int32_t, 1>()});
}

void launch(const Case& item, const Launcher& launcher) {
  const Tensor& table = item.input("block_table");
  const Tensor& lengths = item.input("seq_lens");
  const std::int64_t q = item.integer("q");
  const std::int64_t rows = q == 1 ? table.dim(0) : item.integer("n") / q * q;
  launcher.enqueue(
      device::launch::TokenRows{.block_table = launcher.address<const std::int32_t>("block_table"),
                                .table_row_stride = table.layout().strides[0],
                                .seq_lens = launcher.address<const std::int32_t>("seq_lens"),
                                .seq_lens_stride = lengths.layout().strides[0],
                                .rows_table = launcher.address<std::int32_t>("out.block_table"),
                                .rows_table_stride = table.dim(1) + row_gap(item, "out_row_gap"),
                                .rows_lens = launcher.address<std::int32_t>("out.seq_lens"),
                                .rows = rows,
                                .length_rows = q == 1 ? lengths.dim(0) : rows,
                                .width = table.dim(1),
                                .q_len = q});
}

Case adopt(const Recording&, const RecordedCase& recorded) {
  Case item;
  item.scalars = {{"q", recorded.integer("q")}, {"n", recorded.integer("n")}};
  item.inputs = recorded.inputs;
  for (const NamedTensor& known : recorded.outputs)
    item.expected.push_back({known.name, known.tensor, std::nullopt});
  return item;
}

/// The case with only the given requests, in the given order.
Case with_requests(const Case& item, const std::vector<std::int64_t>& requests) {
  Case part = item;
  const std::int64_t q = item.integer("q");
  for (NamedScalar& scalar : part.scalars)
    if (scalar.name == "n") scalar.value = static_cast<std::int64_t>(requests.size()) * q;
  part.inputs = {{"block_table", take_rows(item.input("block_table"), requests)},
                 {"seq_lens", take_rows(item.input("seq_lens"), requests)}};
  return part;
}

std::int64_t live_requests(const Case& item) {
  const std::int64_t q = item.integer("q");
  return q == 1 ? std::min(item.input("block_table").dim(0), item.input("seq_lens").dim(0))
                : item.integer("n") / q;
}

std::optional<std::string> lengths_count_up(const Case& item, const Outputs& out, const Evaluate&) {
  const std::int64_t q = item.integer("q");
  const auto lengths = output(out, "seq_lens").view<std::int32_t, 1>();
  for (std::int64_t row = 0; q > 1 && row + 1 < lengths.dim(0); ++row)
    if (row % q != q - 1 && lengths(row + 1) - lengths(row) != 1)
      return fmt::format("rows {} and {} of one request have lengths {} and {}", row, row + 1,
                         lengths(row), lengths(row + 1));
  return std::nullopt;
}

laws::Parts reversed_live_requests(const Case& item) {
  laws::Parts order(static_cast<std::size_t>(live_requests(item)));
  std::iota(order.rbegin(), order.rend(), std::int64_t{0});
  return order;
}

std::int64_t tokens_of_request(const Case& item) {
  return item.integer("q");
}

}  // namespace

Stage token_rows_stage() {
  Stage stage;
  stage.name = "token_rows";
  stage.summary = "one block-table row and one length per token of a decode step";
  stage.source = "mono-runner: token_rows; mono-decode section 2";
  stage.dimensions = {
      {"requests", 1, 0, 6, {0, 16, 33}, {}, "live requests"},
      {"padded_rows", 0, 0, 3, {}, {}, "further rows of both tables, of length 0"},
      {"q_len", 1, 1, 8, {1, 2, 3, 4, 16}, {}, "query tokens a request"},
      {"left_over", 0, 0, 7, {}, {}, "tokens beyond a multiple of q_len (modulo q_len)"},
      {"width", 1, 0, 20, {1, 4, 128, 257}, {}, "columns of the block table"},
      {"table_row_gap", 0, 0, 5, {}, {}, "elements between rows of the block table"},
      {"out_row_gap", 0, 0, 5, {}, {}, "elements between rows of the result"},
      {"seq_lens_stride", 1, 1, 3, {}, {}, "stride of the lengths"},
      token_lengths_dimension(),
      table_ids_dimension(),
      defect_dimension(9, {"missing_requests", "length_below_int32", "q_len_zero"}),
  };
  stage.inputs = {
      {"block_table", {DType::kInt32}, {"rows of the table", "width"}, InputStorage::kRows},
      {"seq_lens", {DType::kInt32}, {"lengths"}, InputStorage::kStrided}};
  stage.scalars = {ScalarSpec::integer("q", 1, limits::kExtent),
                   ScalarSpec::integer("n", 0, limits::kExtent),
                   ScalarSpec::row_gap("out_row_gap")};
  stage.build = build;
  stage.outputs = outputs;
  stage.reference = reference;
  stage.launch = launch;
  stage.recordings = {"token_rows"};
  stage.adopt = adopt;
  stage.properties = {
      laws::permute(
          {.part = "request",
           .inputs = {},
           .outputs = {{"block_table", 0, tokens_of_request}, {"seq_lens", 0, tokens_of_request}},
           .order = reversed_live_requests,
           .variant = with_requests}),
      {"lengths_count_up", "lengths of a request's rows grow by one", lengths_count_up},
  };
  return stage;
}

}  // namespace monoref
