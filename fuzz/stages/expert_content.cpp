#include "fuzz/stages/expert_content.hpp"

#include <algorithm>
#include <array>
#include <climits>
#include <cstring>
#include <numeric>
#include <set>

#include "fuzz/stages/content.hpp"
#include "fuzz/stages/floats.hpp"
#include "fuzz/stages/step_rows.hpp"
#include "reference/rules/weight_layouts.hpp"

namespace monoref {
namespace {

constexpr auto kBlock = static_cast<std::int64_t>(kMxBlock);
/// More experts than these are not stored whole, at the model's sizes 1.2 GB.
constexpr std::int64_t kManyExperts = 8;

MxElement element_of(const Params& params) {
  return params.word("weights") == "mxfp4" ? MxElement::kFp4 : MxElement::kFp8;
}

/// `count` of the ids 0 .. n - 1 in random order.
std::vector<std::int32_t> choose(std::int64_t count, std::int64_t n, CounterRandom& random) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(n));
  std::iota(ids.begin(), ids.end(), 0);
  for (std::int64_t i = 0; i < count; ++i)
    std::swap(ids[static_cast<std::size_t>(i)],
              ids[static_cast<std::size_t>(i + random.below(n - i))]);
  ids.resize(static_cast<std::size_t>(count));
  return ids;
}

std::vector<std::int32_t> routed_ids(std::string_view kind, const Routing& routing,
                                     std::int64_t row, const std::vector<std::int32_t>& common,
                                     CounterRandom& random) {
  if (kind == "same") return common;
  std::vector<std::int32_t> ids;
  for (std::int64_t slot = 0; slot < routing.top_k; ++slot) {
    if (kind == "rotated")
      ids.push_back(common[static_cast<std::size_t>((slot + row) % routing.top_k)]);
    if (kind == "spread")
      ids.push_back(static_cast<std::int32_t>((row * routing.top_k + slot) % routing.n_routed));
  }
  return ids.empty() ? choose(routing.top_k, routing.n_routed, random) : ids;
}

std::int32_t garbage_id(const Routing& routing, CounterRandom& random) {
  const std::array<std::int32_t, 5> kinds{1 << 30, -1, INT_MIN, INT_MAX,
                                          static_cast<std::int32_t>(routing.n_routed + 1)};
  return kinds[static_cast<std::size_t>(random.below(kinds.size()))];
}

/// Four E4M3FN codes at once: where a byte is NaN, one bit less of its exponent.
std::uint32_t without_nan(std::uint32_t word) {
  const std::uint32_t nan = ((word & 0x7F7F7F7Fu) + 0x01010101u) & 0x80808080u;
  return word ^ nan >> 4;
}

template <class MakeWord>
void fill_words(std::span<std::byte> bytes, CounterRandom random, MakeWord make_word) {
  for (std::size_t i = 0; i < bytes.size(); i += 4) {
    const std::uint32_t word = make_word(random.bits32(), random);
    std::memcpy(&bytes[i], &word, std::min<std::size_t>(4, bytes.size() - i));
  }
}

/// Codes of the named content. "cancelling" ones are large and of both signs, so that the order of
/// a sum shows; "positive" ones are above 0, so that Inf shows.
void fill_codes(std::span<std::byte> bytes, std::string_view kind, MxElement element,
                const CounterRandom& random) {
  using Word = std::uint32_t;
  const bool fp8 = element == MxElement::kFp8;
  const auto any = [fp8](Word word) { return fp8 ? without_nan(word) : word; };
  if (kind == "ones")
    return fill_words(bytes, random, [=](Word word, CounterRandom&) {
      return fp8 ? 0x38383838u ^ (word & 0x80808080u) : 0x22222222u ^ (word & 0x88888888u);
    });
  if (kind == "cancelling")
    return fill_words(bytes, random, [=](Word word, CounterRandom&) {
      return fp8 ? 0x70707070u | (word & 0x8D8D8D8Du) : 0x66666666u | (word & 0x99999999u);
    });
  if (kind == "positive")
    return fill_words(bytes, random, [=](Word word, CounterRandom&) {
      return fp8 ? without_nan(0x01010101u | (word & 0x7F7F7F7Fu))
                 : 0x11111111u | (word & 0x77777777u);
    });
  if (kind == "sparse")
    return fill_words(bytes, random, [=](Word word, CounterRandom& more) {
      return more.once_in(8) ? any(word) : 0;
    });
  if (kind == "special")
    return fill_words(bytes, random, [=](Word word, CounterRandom& more) {
      return any(word) != word && more.once_in(32) ? word : any(word);
    });
  fill_words(bytes, random, [=](Word word, CounterRandom&) { return any(word); });
}

/// The second half of every row of `width` becomes the first.
void repeat_halves(std::vector<std::byte>& rows, std::size_t width) {
  for (std::size_t first = 0; first < rows.size(); first += width)
    std::copy_n(&rows[first], width / 2, &rows[first + width / 2]);
}

/// The scale byte of a block; `one_special_in` so many is one of the ends of the format. "small"
/// ones make dots of a few units, where a sigmoid is neither 0 nor 1.
std::uint8_t scale_byte(std::string_view kind, std::int64_t row, std::int64_t block,
                        std::int64_t one_special_in, CounterRandom& random) {
  constexpr std::array<std::uint8_t, 4> kEnds{0, 1, 254, 255};
  if (kind == "ones") return 127;
  if (kind == "small") return static_cast<std::uint8_t>(random.between(116, 120));
  if (kind == "distinct") return static_cast<std::uint8_t>(100 + (row * 7 + block) % 40);
  if (kind == "special" && random.once_in(one_special_in))
    return kEnds[static_cast<std::size_t>(random.below(kEnds.size()))];
  return static_cast<std::uint8_t>(random.between(120, 134));
}

/// A stack of matrices while it is filled.
struct Stack {
  Tensor weight;
  Tensor scale;
  std::int64_t rows;
  std::int64_t k;
  MxElement element;

  std::int64_t columns() const { return scale.dim(1); }
  std::span<std::byte> codes(std::int64_t id) {
    const std::int64_t size = rows * weight.dims().back();
    return weight.bytes({id * size, size});
  }
  std::span<std::byte> scales(std::int64_t id) {
    return scale.bytes({id * rows * columns(), rows * columns()});
  }
};

/// Which experts of a stack have storage: all, or those that are routed to, with one or two more
/// where their runs alone would be a tensor that is cut off.
Layout stack_layout(std::vector<std::int64_t> dims, std::int64_t experts, bool whole,
                    std::vector<std::int32_t> routed) {
  Layout layout = Layout::dense(std::move(dims));
  if (whole || experts == 0) return layout;
  const std::int64_t run = layout.elements() / experts;
  routed.push_back(0);
  std::vector<Extent> extents = stored_blocks(routed, run, run);
  if (extents.size() == 1) {
    routed.push_back(static_cast<std::int32_t>(experts - 1));
    extents = stored_blocks(routed, run, run);
  }
  layout.extents = std::move(extents);
  return layout;
}

/// Makes the second half of every row's k the first with the other sign. In the layout of
/// shuffle_weight the columns of 16 rows are one run, so that its halves are theirs.
void mirror_codes(Stack& stack, std::int64_t id) {
  const std::byte signs{stack.element == MxElement::kFp8 ? std::uint8_t{0x80} : std::uint8_t{0x88}};
  const auto run = static_cast<std::size_t>(16 * stack.weight.dims().back());
  const std::span<std::byte> codes = stack.codes(id);
  for (std::size_t group = 0; group < codes.size(); group += run)
    for (std::size_t i = 0; i < run / 2; ++i) codes[group + run / 2 + i] = codes[group + i] ^ signs;
}

/// Fills one expert from streams of its own, so that its weights do not depend on who else is
/// routed to. Padding columns of the scales stay as they are.
void fill_expert(Stack& stack, std::int64_t id, const Params& params, std::string_view name,
                 std::uint64_t seed) {
  const std::uint64_t stream =
      CounterRandom::hash(name) + static_cast<std::uint64_t>(id) * 0x9E3779B97F4A7C15u;
  fill_codes(stack.codes(id), params.word("weight_codes"), stack.element,
             CounterRandom(seed, stream));
  CounterRandom random(seed, ~stream);
  const std::string_view kind = params.word("weight_scales");
  const std::int64_t blocks = stack.k / kBlock;
  const bool mirrored = params["mirrored"] != 0;
  if (mirrored) mirror_codes(stack, id);
  for (std::int64_t row = 0; row < stack.rows; ++row)
    for (std::int64_t block = 0; block < blocks; ++block) {
      std::byte* own =
          &stack.scale.base()[shuffled_scale_offset(id * stack.rows + row, block, stack.columns())];
      *own = std::byte{scale_byte(kind, row, block, 128, random)};
      if (mirrored && block >= blocks / 2)
        *own = stack.scale.base()[shuffled_scale_offset(id * stack.rows + row, block - blocks / 2,
                                                        stack.columns())];
    }
}

std::int64_t padded_columns(std::int64_t k) {
  return (k / kBlock + 7) / 8 * 8;
}

std::vector<std::int32_t> experts_in(const Tensor& ids, std::int64_t limit) {
  std::set<std::int32_t> found;
  for (const Extent& extent : ids.layout().extents)
    for (std::int64_t i = 0; i < extent.count; ++i) {
      const std::int32_t id = reinterpret_cast<const std::int32_t*>(ids.base())[extent.offset + i];
      if (id >= 0 && id < limit) found.insert(id);
    }
  return {found.begin(), found.end()};
}

/// Experts are filled side by side: full-size ones are 14 million bytes each.
void fill_stack(Stack& stack, const std::vector<std::int32_t>& routed, const Params& params,
                std::string_view name, std::uint64_t seed) {
  stack.weight.fill_bytes(std::byte{0xFF});
  stack.scale.fill_bytes(std::byte{0xFF});
  const auto count = static_cast<std::int64_t>(routed.size());
#pragma omp parallel for schedule(dynamic) if (count * stack.rows * stack.k > (1 << 22))
  for (std::int64_t i = 0; i < count; ++i)
    fill_expert(stack, routed[static_cast<std::size_t>(i)], params, name, seed);
}

}  // namespace

std::vector<Dimension> routing_dimensions() {
  return {
      {"rows", 1, 0, 6, {0, 1, 4, 5, 11, 12, 16, 17}, {}, "tokens of the step"},
      {"top_k", 1, 1, 3, {1, 4}, {}, "routed experts of a token", 8},
      {"experts", 2, 1, 6, {1, 8, 128}, {}, "routed experts, at least top_k"},
      Dimension::choice("shared", {"none", "separate", "fused"}, "the shared expert"),
      Dimension::choice("ids", {"distinct", "same", "rotated", "spread", "padded"},
                        "who is routed where"),
  };
}

std::vector<Dimension> expert_weight_dimensions() {
  return {
      Dimension::choice("weights", {"mxfp8", "mxfp4"}, "element format of the routed experts"),
      Dimension::choice("storage", {"whole", "routed"},
                        "experts whose weights exist; of many experts the routed ones"),
      Dimension::choice("activation_codes",
                        {"any", "cancelling", "positive", "ones", "sparse", "special"},
                        "codes of the activations"),
      Dimension::choice("weight_codes",
                        {"any", "cancelling", "positive", "ones", "sparse", "special"},
                        "codes of the weights"),
      Dimension::choice("activation_scales", {"ones", "near", "small", "distinct", "special"},
                        "scales of the activations"),
      Dimension::choice("weight_scales", {"ones", "near", "small", "distinct", "special"},
                        "scales of the weights"),
      {"mirrored",
       0,
       0,
       1,
       {},
       {},
       "the second half of k cancels the first: sums are what their roundings leave"},
  };
}

Routing::Routing(const Params& params)
    : rows(params["rows"]),
      top_k(params["top_k"]),
      n_routed(std::max(params["experts"], top_k)),
      has_shared(params.word("shared") != "none"),
      is_separate(params.word("shared") == "separate") {}

Tensor make_expert_ids(const Params& params, const Routing& routing, const Contract& contract,
                       CounterRandom& random) {
  const std::string_view kind = params.word("ids");
  const bool garbage = kind == "padded" && contract.out_of_range_slot == OutOfRangeSlot::kDrop;
  const std::int64_t live = kind == "padded" ? routing.rows - routing.rows / 3 : routing.rows;
  const std::vector<std::int32_t> common = choose(routing.top_k, routing.n_routed, random);
  std::vector<std::int32_t> all;
  for (std::int64_t row = 0; row < routing.rows; ++row) {
    std::vector<std::int32_t> ids =
        routed_ids(row < live ? kind : "same", routing, row, common, random);
    if (garbage && row < live && random.once_in(2))
      ids[static_cast<std::size_t>(random.below(routing.top_k))] = garbage_id(routing, random);
    if (routing.has_shared) ids.push_back(static_cast<std::int32_t>(routing.n_routed));
    if (garbage && row >= live)
      for (std::int32_t& id : ids) id = garbage_id(routing, random);
    all.insert(all.end(), ids.begin(), ids.end());
  }
  return Tensor::of(DType::kInt32, {routing.rows, routing.slots()}, all);
}

void add_expert_weights(Case& item, const Params& params, const Routing& routing,
                        std::string_view weight, std::string_view scale, std::int64_t rows,
                        std::int64_t k, std::uint64_t seed) {
  const MxElement element = element_of(params);
  const auto bytes = static_cast<std::int64_t>(mx_code_bytes(element, static_cast<std::size_t>(k)));
  const std::int64_t experts = routing.experts();
  const bool whole = params.word("storage") == "whole" && routing.n_routed <= kManyExperts;
  const std::vector<std::int32_t> routed = experts_in(item.input("topk_ids"), experts);
  Stack stack{Tensor(DType::kUInt8, stack_layout({experts, rows, bytes}, experts, whole, routed)),
              Tensor(DType::kUInt8,
                     stack_layout({experts * rows, padded_columns(k)}, experts, whole, routed)),
              rows, k, element};
  fill_stack(stack, routed, params, weight, seed);
  item.scalars.push_back({"weights", std::string(params.word("weights"))});
  item.scalars.push_back({"n_routed", routing.n_routed});
  item.inputs.push_back({std::string(weight), std::move(stack.weight)});
  item.inputs.push_back({std::string(scale), std::move(stack.scale)});
  if (!routing.is_separate) return;
  Stack shared{Tensor(DType::kUInt8, Layout::dense({rows, k})),
               Tensor(DType::kUInt8, Layout::dense({rows, padded_columns(k)})), rows, k,
               MxElement::kFp8};
  const std::string prefix = "shared_";
  fill_stack(shared, {0}, params, prefix + std::string(weight), seed);
  item.inputs.push_back({prefix + std::string(weight), std::move(shared.weight)});
  item.inputs.push_back({prefix + std::string(scale), std::move(shared.scale)});
}

void add_expert_inputs(Stage& stage, std::string_view weight, std::string_view scale) {
  const bool first = weight == "w13";
  const std::vector<DType> bytes{DType::kUInt8};
  stage.inputs.push_back({std::string(weight),
                          bytes,
                          {"experts", "rows of an expert", "bytes of a row"},
                          InputStorage::kSparse});
  stage.inputs.push_back({std::string(scale),
                          bytes,
                          {"rows of all experts", "scales of a row"},
                          InputStorage::kSparse});
  stage.inputs.push_back({first ? "shared_w13" : "shared_w2",
                          bytes,
                          {"rows of an expert", "k"},
                          InputStorage::kDense,
                          true});
  stage.inputs.push_back({first ? "shared_s13" : "shared_s2",
                          bytes,
                          {"rows of an expert", "scales of a row"},
                          InputStorage::kDense,
                          true});
  stage.scalars.push_back(ScalarSpec::word("weights", {"mxfp8", "mxfp4"}));
  stage.scalars.push_back(ScalarSpec::integer("n_routed", 1, kExpertMaxRouted));
}

Tensor make_activation_codes(const Params& params, std::vector<std::int64_t> dims, std::int64_t gap,
                             CounterRandom& random) {
  const Layout dense = Layout::dense(dims);
  std::vector<std::byte> codes(static_cast<std::size_t>(dense.elements()));
  fill_codes(codes, params.word("activation_codes"), MxElement::kFp8, random);
  if (params["mirrored"] != 0) repeat_halves(codes, static_cast<std::size_t>(dims.back()));
  std::size_t at = 0;
  std::vector<std::int64_t> strides = dense.strides;
  for (std::size_t axis = 0; axis + 1 < strides.size(); ++axis)
    strides[axis] = strides[axis] / dims.back() * (dims.back() + gap);
  return drawn_tensor(DType::kFloat8E4M3FN, Layout::strided(std::move(dims), std::move(strides)),
                      [&] { return std::to_integer<std::uint32_t>(codes[at++]); });
}

Tensor make_activation_scales(const Params& params, std::vector<std::int64_t> dims,
                              CounterRandom& random) {
  const std::int64_t blocks = dims.back();
  const std::string_view kind = params.word("activation_scales");
  std::vector<std::byte> scales;
  for (std::int64_t place = 0; place < Layout::dense(dims).elements(); ++place)
    scales.push_back(std::byte{scale_byte(kind, place / blocks, place % blocks, 64, random)});
  if (params["mirrored"] != 0) repeat_halves(scales, static_cast<std::size_t>(blocks));
  std::size_t at = 0;
  return drawn_tensor(DType::kUInt8, Layout::dense(std::move(dims)),
                      [&] { return std::to_integer<std::uint32_t>(scales[at++]); });
}

ExpertWeights expert_weights_of(const Case& item, const std::string& weight,
                                const std::string& scale) {
  return {item.word("weights") == "mxfp4" ? MxElement::kFp4 : MxElement::kFp8,
          item.integer("n_routed"),
          item.input(weight),
          item.input(scale),
          item.find_input("shared_" + weight),
          item.find_input("shared_" + scale)};
}

std::vector<laws::Ignored> unrouted_experts(std::string_view weight, std::string_view scale) {
  const auto unrouted = [weight](const Case& item) {
    const std::int64_t experts = item.input(std::string(weight)).dim(0);
    std::vector<bool> names_nobody(static_cast<std::size_t>(experts), true);
    for (const std::int32_t id : experts_in(item.input("topk_ids"), experts))
      names_nobody[static_cast<std::size_t>(id)] = false;
    return names_nobody;
  };
  return {{weight,
           [unrouted](const Case& item) -> laws::Region {
             return [which = unrouted(item)](laws::Index at) {
               return which[static_cast<std::size_t>(at[0])];
             };
           }},
          {scale, [unrouted, weight](const Case& item) -> laws::Region {
             return [which = unrouted(item), rows = item.input(std::string(weight)).dim(1)](
                        laws::Index at) { return which[static_cast<std::size_t>(at[0] / rows)]; };
           }}};
}

std::vector<laws::Ignored> garbage_ids(std::string_view weight, std::string_view scale) {
  return {{"topk_ids", [=](const Case& item) -> laws::Region {
             const auto ids = item.input("topk_ids").view<std::int32_t, 2>();
             const ExpertWeights weights =
                 expert_weights_of(item, std::string(weight), std::string(scale));
             return
                 [ids, weights](laws::Index at) { return !weights.is_expert(ids(at[0], at[1])); };
           }}};
}

}  // namespace monoref
