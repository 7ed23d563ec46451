#include "fuzz/stages/indexer_metadata_recording.hpp"

#include <algorithm>
#include <set>

#include "fuzz/stages/indexer_content.hpp"
#include "fuzz/stages/indexer_metadata_case.hpp"
#include "reference/rules/stage_checks.hpp"
#include "reference/stages/context_parallel_lengths.hpp"

namespace monoref {
namespace {

/// A recorded parameter, the scalar it becomes, and its limits.
struct Parameter {
  std::string_view theirs;
  std::string_view ours;
  std::int64_t low = 0;
  std::int64_t high = kInt32Max;
};

/// max_num_seqs sizes nothing that we model.
constexpr Parameter kParameters[] = {
    {"block_size", "block_size", 1},
    {"compress_ratio", "compress_ratio"},
    {"cp_interleave", "interleave", 1},
    {"dcp_rank", "rank"},
    {"dcp_world_size", "world", 1},
    {"device_family", "device_family"},
    {"max_logits_mb", "max_logits_mb"},
    {"max_model_len", "max_model_len", 1},
    {"max_num_batched_tokens", "max_num_batched_tokens", 1, limits::kTokens},
    {"max_num_seqs", ""},
    {"num_speculative_tokens", "num_speculative_tokens"},
    {"storage_block_size", "storage_block_size", 1},
    {"supertile_k_setting", "supertile_k_setting", kSupertileUnset},
    {"use_dcp_local", "use_dcp_local", 0, 1},
};

/// A recorded case that remembers which of its names have been used.
class Consumed {
 public:
  explicit Consumed(const RecordedCase& recorded) : recorded_(recorded) {}

  bool has(const std::string& name) const {
    return recorded_.find_scalar(name) != nullptr || recorded_.find_output(name) != nullptr;
  }
  std::int64_t integer(const std::string& name, std::int64_t low = 0,
                       std::int64_t high = kInt32Max) {
    used_.insert(name);
    return recorded_.integer(name, low, high);
  }
  const Tensor& output(const std::string& name, DType type, std::vector<std::int64_t> dims) {
    used_.insert(name);
    return recorded_.output(name, {{type}, std::move(dims)});
  }
  std::int64_t most_chunks() const { return std::ssize(recorded_.outputs); }
  void check_all_used() const {
    for (const NamedScalar& scalar : recorded_.scalars) check_used(scalar.name);
    for (const NamedTensor& tensor : recorded_.outputs) check_used(tensor.name);
  }

 private:
  void check_used(const std::string& name) const {
    if (!used_.contains(name))
      refuse("{} has no place in the stage, must not be there", recorded_.place(name));
  }

  const RecordedCase& recorded_;
  std::set<std::string> used_;
};

void adopt_inputs(const RecordedCase& recorded, Consumed& consumed, Case& item) {
  item.stage = "indexer_metadata_build";
  for (const auto& [theirs, ours, low, high] : kParameters) {
    const std::string name(theirs);
    if (!consumed.has(name)) continue;
    const std::int64_t value = consumed.integer(name, low, high);
    if (!ours.empty()) item.scalars.push_back({std::string(ours), value});
  }
  item.inputs = recorded.inputs;
  const Tensor& lengths = recorded.input("seq_lens", {{DType::kInt32}, {kAnyExtent}});
  std::int64_t longest = 0;
  std::vector<std::int64_t> local;
  for (const std::int64_t length : numbers_of(lengths)) {
    longest = std::max(longest, length);
    local.push_back(local_length(length, context_parallel_of(item)));
  }
  item.scalars.push_back({"max_seq_len", longest});
  item.inputs.push_back({"seq_lens_cpu", lengths});
  if (item.integer("use_dcp_local") != 0)
    item.inputs.push_back({"dcp_local_seq_lens_cpu", vector_of(DType::kInt32, local)});
  if (recorded.find_input("seq_lens_cpu_upper_bound") == nullptr)
    item.inputs.push_back({"seq_lens_cpu_upper_bound", lengths});
}

void expect_numbers(Case& item, std::string name, const std::vector<std::int64_t>& numbers) {
  item.expected.push_back({std::move(name), vector_of(DType::kInt64, numbers), std::nullopt});
}

/// The recorded lengths at the front of the carried buffer, whose rest was not recorded.
void expect_decode_lengths(const RecordedCase& source, const Tensor& recorded,
                           std::int64_t buffer_rows, Case& item) {
  if (recorded.layout().elements() > buffer_rows)
    refuse("{} has {} elements, must have at most {} (max_num_batched_tokens)",
           source.place("output decode_seq_lens"), recorded.layout().elements(), buffer_rows);
  expect_numbers(item, "decode_seq_lens_shape", {recorded.dim(0), recorded.dim(1)});
  Tensor buffer(DType::kInt32, Layout::dense({buffer_rows}));
  Tensor specified(DType::kUInt8, Layout::dense({buffer_rows}));
  buffer.fill_bytes(std::byte{0});
  specified.fill_bytes(std::byte{0});
  const std::vector<std::byte> image = recorded.image();
  std::copy(image.begin(), image.end(), buffer.base());
  std::fill_n(specified.base(), recorded.layout().elements(), std::byte{1});
  item.expected.push_back({"decode_seq_lens", std::move(buffer), std::move(specified)});
}

void expect_decode_table(const Tensor& recorded, std::int64_t source_width, Case& item) {
  Tensor specified(DType::kUInt8, Layout::dense(recorded.dims()));
  auto mask = specified.view<std::uint8_t, 2>();
  for (std::int64_t row = 0; row < mask.dim(0); ++row)
    for (std::int64_t column = 0; column < mask.dim(1); ++column)
      mask(row, column) = column < source_width ? 1 : 0;
  item.expected.push_back({"decode_block_table", recorded, std::move(specified)});
}

/// One tensor with the rows of all, in order. `dims` gives the shape of a row where there are none.
Tensor concatenated(const std::vector<const Tensor*>& parts, std::vector<std::int64_t> dims) {
  std::vector<std::byte> image;
  dims[0] = 0;
  for (const Tensor* part : parts) {
    const std::vector<std::byte> more = part->image();
    image.insert(image.end(), more.begin(), more.end());
    dims[0] += part->dim(0);
  }
  Tensor all(DType::kInt32, Layout::dense(dims));
  all.set_image(image);
  return all;
}

void expect_chunks(Consumed& consumed, std::int64_t table_width, Case& item) {
  const std::int64_t chunks = consumed.has("prefill_chunks")
                                  ? consumed.integer("prefill_chunks", 0, consumed.most_chunks())
                                  : 0;
  const auto name_of = [](std::int64_t chunk, std::string_view name) {
    return fmt::format("chunk{}_{}", chunk, name);
  };
  for (const std::string_view name : kChunkScalars) {
    std::vector<std::int64_t> numbers;
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk)
      numbers.push_back(consumed.integer(name_of(chunk, name)));
    expect_numbers(item, chunk_output(name), numbers);
  }
  for (const std::string_view name : kChunkArrays) {
    std::vector<const Tensor*> parts;
    const std::vector<std::int64_t> dims = name == "block_table"
                                               ? std::vector<std::int64_t>{kAnyExtent, table_width}
                                               : std::vector<std::int64_t>{kAnyExtent};
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk)
      parts.push_back(&consumed.output(name_of(chunk, name), DType::kInt32, dims));
    item.expected.push_back({chunk_output(name), concatenated(parts, dims), std::nullopt});
  }
}

}  // namespace

std::string chunk_output(std::string_view name) {
  return fmt::format("chunk_{}", name);
}

Case adopt_indexer_metadata(const Recording&, const RecordedCase& recorded) {
  Consumed consumed(recorded);
  Case item;
  item.contract.decode_lengths = LengthRule::kAsSeed;  // it is the original's own text
  adopt_inputs(recorded, consumed, item);
  for (const std::string_view scalar : kStepScalars) {
    const std::string name(scalar);
    if (consumed.has(name)) expect_numbers(item, name, {consumed.integer(name)});
  }
  item.expected.push_back(
      {"slot_mapping", consumed.output("slot_mapping", DType::kInt64, {kAnyExtent}), std::nullopt});
  const std::int64_t width =
      recorded.input("block_table", {{DType::kInt32}, {kAnyExtent, kAnyExtent}}).dim(1);
  if (consumed.has("decode_seq_lens")) {
    expect_decode_lengths(
        recorded, consumed.output("decode_seq_lens", DType::kInt32, {kAnyExtent, kAnyExtent}),
        item.integer("max_num_batched_tokens"), item);
    item.expected.push_back(
        {"decode_lens", consumed.output("decode_lens", DType::kInt32, {kAnyExtent}), std::nullopt});
    expect_decode_table(
        consumed.output("decode_block_table", DType::kInt32, {kAnyExtent, kAnyExtent}), width,
        item);
  }
  expect_chunks(consumed, width, item);
  consumed.check_all_used();
  return item;
}

}  // namespace monoref
