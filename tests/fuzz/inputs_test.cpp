// Cases that no generator made: every input and scalar of every stage, spoilt in each way that a
// file can spoil it. Each must be refused by a message that names stage and argument.
#include "fuzz/inputs.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "fuzz/generator.hpp"
#include "fuzz/runner.hpp"

namespace monoref {
namespace {

constexpr DType kTypes[] = {DType::kInt32,          DType::kInt64,          DType::kUInt8,
                            DType::kFloat32,        DType::kFloat64,        DType::kBFloat16,
                            DType::kFloat8E4M3FN,   DType::kFloat8E4M3FNUZ, DType::kFloat8E5M2,
                            DType::kFloat8E5M2FNUZ, DType::kFloat8E8M0};
constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

/// Every stage that lists its inputs, with its sound cases.
struct Sound {
  const Stage* stage;
  Case item;

  /// The entry of the list that an input or scalar goes by.
  template <class Spec>
  const Spec& spec(const std::vector<Spec>& specs, const std::string& name) const {
    return *std::find_if(specs.begin(), specs.end(), [&](const Spec& spec) {
      return fits(spec.name, name) &&
             (spec.variant.empty() || spec.variant == item.word(std::string(stage->variant)));
    });
  }
  const InputSpec& input_spec(const std::string& name) const { return spec(stage->inputs, name); }
};

/// Bytes of a case's inputs if all of their elements were stored: the tests make such tensors.
std::int64_t dense_bytes(const Case& item) {
  std::int64_t bytes = 0;
  for (const NamedTensor& input : item.inputs)
    bytes +=
        input.tensor.layout().elements() * static_cast<std::int64_t>(input.tensor.element_size());
  return bytes;
}

bool has_defect(const Case& item) {
  return std::any_of(item.scalars.begin(), item.scalars.end(), [](const NamedScalar& scalar) {
    return scalar.name == "defect" && scalar.value != Scalar(std::string("none"));
  });
}

/// Whether an input has rows and columns enough for its strides and extents to matter.
bool tells_much(const Tensor& tensor) {
  return tensor.layout().elements() >= 3 && tensor.dim(0) >= 2;
}

/// What a search for sound cases takes: how large a case may be, and whether inputs count only in
/// cases that tell much of them.
struct Search {
  std::int64_t most_bytes;
  bool choosy;
};

/// The first cases of a campaign that together have every input the stage lists: small ones that
/// tell much of it, or, where a stage has none, others.
std::vector<Sound> sound_cases_of(const Stage& stage) {
  constexpr std::uint64_t kDraws = 60;
  std::vector<Sound> made;
  std::vector<bool> seen(stage.inputs.size());
  for (const Search& search :
       {Search{1 << 16, true}, Search{1 << 22, true}, Search{1 << 24, false}})
    for (std::uint64_t index = 0; index < kDraws; ++index) {
      if (std::find(seen.begin(), seen.end(), false) == seen.end()) return made;
      const Draw draw = draw_case(stage, 3, index, std::nullopt);
      Sound sound{&stage, build_case(stage, draw.params, draw.contract, draw.seed)};
      if (has_defect(sound.item) || dense_bytes(sound.item) > search.most_bytes) continue;
      bool brings_one = false;
      for (const NamedTensor& input : sound.item.inputs) {
        const auto at =
            static_cast<std::size_t>(&sound.input_spec(input.name) - stage.inputs.data());
        if (seen[at] || (search.choosy && !tells_much(input.tensor))) continue;
        seen[at] = brings_one = true;
      }
      if (brings_one) made.push_back(std::move(sound));
    }
  return made;
}

const std::vector<Sound>& sound_cases() {
  static const std::vector<Sound> cases = [] {
    std::vector<Sound> made;
    for (const Stage& stage : all_stages())
      for (Sound& sound : sound_cases_of(stage)) made.push_back(std::move(sound));
    return made;
  }();
  return cases;
}

/// What `judge_case` says of a case.
std::string refusal_of(const Case& item) {
  const CaseResult result = judge_case(find_stage(item.stage), item, {});
  if (result.verdict() != Verdict::kRefused) return std::string(verdict_name(result.verdict()));
  return result.decisive()->message;
}

Case with_input(const Case& item, std::string_view input, Tensor tensor) {
  Case other = item;
  for (NamedTensor& known : other.inputs)
    if (known.name == input) known.tensor = std::move(tensor);
  return other;
}

std::string refusal_with(const Case& item, std::string_view input, Tensor tensor) {
  return refusal_of(with_input(item, input, std::move(tensor)));
}

Case with_scalar(const Case& item, std::string_view name, Scalar value) {
  Case other = item;
  for (NamedScalar& scalar : other.scalars)
    if (scalar.name == name) scalar.value = std::move(value);
  return other;
}

std::string argument(const Sound& sound, const std::string& name) {
  return fmt::format("{}: {} ", sound.stage->name, name);
}

TEST(StageInputs, EveryStageListsItsOwn) {
  for (const Stage& stage : all_stages()) EXPECT_FALSE(stage.inputs.empty()) << stage.name;
}

TEST(StageInputs, SoundCasesAreTakenAndHaveEverythingListed) {
  for (const Sound& sound : sound_cases())
    EXPECT_EQ(refusal_of(sound.item), "exact") << sound.stage->name;
  for (const Stage& stage : all_stages())
    for (const InputSpec& spec : stage.inputs)
      EXPECT_TRUE(std::any_of(sound_cases().begin(), sound_cases().end(),
                              [&](const Sound& sound) {
                                return sound.stage == &stage &&
                                       std::any_of(sound.item.inputs.begin(),
                                                   sound.item.inputs.end(),
                                                   [&](const NamedTensor& input) {
                                                     return fits(spec.name, input.name);
                                                   });
                              }))
          << stage.name << ": no case has the input " << spec.name;
}

TEST(StageInputs, NothingMayBeMissing) {
  for (const Sound& sound : sound_cases()) {
    for (const NamedTensor& input : sound.item.inputs) {
      if (sound.input_spec(input.name).optional) continue;
      Case other = sound.item;
      std::erase_if(other.inputs,
                    [&](const NamedTensor& known) { return known.name == input.name; });
      const std::string message = refusal_of(other);
      EXPECT_EQ(message,
                fmt::format("{}: the case has no input '{}'", sound.stage->name, input.name));
    }
    for (const NamedScalar& scalar : sound.item.scalars) {
      if (scalar.name == "defect" || sound.spec(sound.stage->scalars, scalar.name).optional)
        continue;
      Case other = sound.item;
      std::erase_if(other.scalars,
                    [&](const NamedScalar& known) { return known.name == scalar.name; });
      EXPECT_EQ(refusal_of(other),
                fmt::format("{}: the case has no parameter '{}'", sound.stage->name, scalar.name));
    }
  }
}

TEST(StageInputs, NothingMayBeUnknownOrThereTwice) {
  for (const Sound& sound : sound_cases()) {
    Case item = sound.item;
    item.inputs.push_back({"residul", Tensor(DType::kInt32, Layout::dense({1}))});
    EXPECT_TRUE(refusal_of(item).starts_with(
        fmt::format("{}: the case has an input 'residul', must have only ", sound.stage->name)))
        << refusal_of(item);
    if (!sound.item.inputs.empty()) {
      item.inputs.back() = item.inputs.front();
      EXPECT_EQ(refusal_of(item), fmt::format("{}: the case has an input '{}' twice",
                                              sound.stage->name, item.inputs.front().name));
    }
    item = sound.item;
    item.scalars.push_back({"colour", std::int64_t{1}});
    EXPECT_TRUE(refusal_of(item).starts_with(
        fmt::format("{}: the case has a parameter 'colour', must have only ", sound.stage->name)))
        << refusal_of(item);
  }
}

TEST(StageInputs, EveryOtherTypeIsRefused) {
  for (const Sound& sound : sound_cases())
    for (const NamedTensor& input : sound.item.inputs) {
      const std::vector<DType>& types = sound.input_spec(input.name).types;
      for (const DType type : kTypes) {
        if (std::find(types.begin(), types.end(), type) != types.end()) continue;
        const std::string message =
            refusal_with(sound.item, input.name, Tensor(type, Layout::dense(input.tensor.dims())));
        EXPECT_TRUE(message.starts_with(
            fmt::format("{}is {}, must be ", argument(sound, input.name), dtype_name(type))))
            << message;
      }
    }
}

TEST(StageInputs, EveryOtherRankIsRefused) {
  for (const Sound& sound : sound_cases())
    for (const NamedTensor& input : sound.item.inputs)
      for (std::size_t rank = 0; rank <= 5; ++rank) {
        const InputSpec& spec = sound.input_spec(input.name);
        if (rank == spec.rank()) continue;
        const Layout layout = Layout::dense(std::vector<std::int64_t>(rank, 1));
        EXPECT_EQ(refusal_with(sound.item, input.name, Tensor(spec.types.front(), layout)),
                  fmt::format("{}has rank {}, must have {}", argument(sound, input.name), rank,
                              spec.rank()));
      }
}

/// A tensor that is the same but for where its elements lie.
Tensor laid_out(const Tensor& tensor, Layout layout) {
  return {tensor.type(), std::move(layout)};
}

TEST(StageInputs, ElementsThatLieOtherwiseAreRefused) {
  for (const Sound& sound : sound_cases())
    for (const NamedTensor& input : sound.item.inputs) {
      const Layout& known = input.tensor.layout();
      if (known.elements() < 3) continue;
      const auto refused = [&](Layout layout, const std::string& what) {
        const std::string message =
            refusal_with(sound.item, input.name, laid_out(input.tensor, std::move(layout)));
        EXPECT_TRUE(message.starts_with(argument(sound, input.name) + what)) << message;
      };
      const InputStorage storage = sound.input_spec(input.name).storage;
      const std::vector<std::int64_t> zeros(known.dims.size(), 0);
      refused(Layout::strided(known.dims, zeros), "has stride");
      if (storage != InputStorage::kStrided) {
        std::vector<std::int64_t> doubled = known.strides;
        for (std::int64_t& stride : doubled) stride *= 2;
        if (known.dims.back() > 1) refused(Layout::strided(known.dims, doubled), "has stride");
      }
      const bool may_miss = storage == InputStorage::kSparse || storage == InputStorage::kCache;
      Layout longer = known;
      longer.extents = {{0, 2 * Layout::strided(known.dims, known.strides).span() + 1}};
      refused(longer, "stores elements ");
      if (may_miss) continue;
      Layout holed = known;
      holed.extents = {{0, 1}, {known.span() - 1, 1}};
      refused(holed, "is stored in 2 runs, must be in one");
      Layout late = known;
      late.extents = {{1, known.span()}};
      refused(late, "stores elements ");
    }
}

/// Whether a case is refused in the name of its stage, or judged and found right.
void expect_refused_or_right(const Case& item, const std::string& what) {
  const std::string message = refusal_of(item);
  EXPECT_TRUE(message == "exact" || message == "allowed" ||
              message.find(item.stage) != std::string::npos)
      << item.stage << ", " << what << ": " << message;
  EXPECT_EQ(message.find("viewed"), std::string::npos) << item.stage << ", " << what << message;
}

TEST(StageInputs, OtherExtentsAreRefusedOrTakenAsTheyAre) {
  for (const Sound& sound : sound_cases())
    for (const NamedTensor& input : sound.item.inputs)
      for (std::size_t axis = 0; axis < input.tensor.rank(); ++axis)
        for (const std::int64_t by : {-1, 1, 7}) {
          std::vector<std::int64_t> dims = input.tensor.dims();
          dims[axis] = std::max<std::int64_t>(dims[axis] + by, 0);
          expect_refused_or_right(
              with_input(sound.item, input.name, laid_out(input.tensor, Layout::dense(dims))),
              fmt::format("{} with {} in dimension {}", input.name, dims[axis], axis));
        }
}

TEST(StageInputs, ExtentsThatNothingIsStoredOfAreBounded) {
  for (const Sound& sound : sound_cases())
    for (const NamedTensor& input : sound.item.inputs)
      for (std::size_t axis = 0; axis < input.tensor.rank(); ++axis) {
        std::vector<std::int64_t> dims(input.tensor.rank(), 0);
        dims[axis] = limits::kEmptyExtent + 1;
        if (dims.size() == 1) continue;  // its elements are stored
        EXPECT_EQ(refusal_with(sound.item, input.name,
                               laid_out(input.tensor, {dims, Layout::dense(dims).strides, {}})),
                  fmt::format("{}has 1048577 in dimension {}, the limit is 1048576 beside an empty"
                              " one",
                              argument(sound, input.name), axis));
        dims.assign(dims.size(), 1);
        dims[axis] = std::int64_t{1} << 31;
        EXPECT_EQ(refusal_with(
                      sound.item, input.name,
                      laid_out(input.tensor,
                               Layout::strided(dims, std::vector<std::int64_t>(dims.size(), 0)))),
                  fmt::format("{}has 2147483648 in dimension {}, the limit is 2147483647",
                              argument(sound, input.name), axis));
      }
}

TEST(StageInputs, RowsMayLieApartButNotOverlap) {
  const Case item = build_case(parse_line("stage=final_norm;seed=3;rows=2"));
  const std::int64_t hidden = item.input("ar").dim(1);
  const auto with_stride = [&](std::int64_t stride) {
    return refusal_with(item, "ar",
                        Tensor(DType::kBFloat16, Layout::strided({2, hidden}, {stride, 1})));
  };
  EXPECT_EQ(with_stride(hidden + 3), "exact");
  EXPECT_EQ(with_stride(hidden - 1),
            fmt::format("final_norm: ar has stride {} in dimension 0, must have at least {}",
                        hidden - 1, hidden));
}

TEST(StageInputs, AxesOfOneNameHaveOneExtentAndTheOneThatAParameterSays) {
  const Case norm = build_case(parse_line("stage=final_norm;seed=3;rows=2"));
  const std::int64_t hidden = norm.input("ar").dim(1);
  EXPECT_EQ(refusal_with(norm, "res", Tensor(DType::kBFloat16, Layout::dense({3, hidden}))),
            "final_norm: res has 3 in dimension 0 (rows), must have 2 as ar has");
  const Case layer = build_case(parse_line("stage=sparse_layer;seed=3;requests=2"));
  EXPECT_EQ(refusal_of(with_scalar(layer, "rows", std::int64_t{1})),
            "sparse_layer: rows is 1, must be 2, the extent of position");
}

TEST(StageInputs, EveryParameterHasARange) {
  for (const Sound& sound : sound_cases())
    for (const NamedScalar& scalar : sound.item.scalars) {
      if (scalar.name == "defect") continue;
      const ScalarSpec& spec = sound.spec(sound.stage->scalars, scalar.name);
      const auto refused = [&](Scalar value) {
        const std::string message = refusal_of(with_scalar(sound.item, scalar.name, value));
        EXPECT_TRUE(message.starts_with(argument(sound, scalar.name) + "is ")) << message;
      };
      if (spec.kind == ScalarSpec::Kind::kWord) {
        refused(std::string("purple"));
        continue;
      }
      if (spec.kind == ScalarSpec::Kind::kReal) {
        refused(std::nan(""));
        if (spec.least > -HUGE_VAL) refused(-HUGE_VAL);
        if (spec.most < HUGE_VAL) refused(HUGE_VAL);
        continue;
      }
      for (const std::int64_t value : {kLeast, spec.low == kLeast ? kLeast : spec.low - 1,
                                       spec.high == kMost ? kMost : spec.high + 1, kMost})
        if (value < spec.low || value > spec.high) refused(value);
      for (const std::int64_t value : {spec.low, spec.high})
        expect_refused_or_right(with_scalar(sound.item, scalar.name, value),
                                fmt::format("{} {}", scalar.name, value));
    }
}

TEST(StageInputs, ParametersOfAnotherKindAreRefused) {
  for (const Sound& sound : sound_cases())
    for (const NamedScalar& scalar : sound.item.scalars)
      for (const Scalar& value :
           {Scalar(std::int64_t{1}), Scalar(1.5), Scalar(std::string("purple"))}) {
        if (value.index() == scalar.value.index()) continue;
        if (scalar.name == "defect") continue;
        const std::string message = refusal_of(with_scalar(sound.item, scalar.name, value));
        EXPECT_TRUE(message.starts_with(
            fmt::format("{}: parameter '{}' is not ", sound.stage->name, scalar.name)))
            << message;
      }
}

TEST(StageInputs, ADefectThatNobodyPlantsIsRefused) {
  Case item = build_case(parse_line("stage=final_norm;seed=3;rows=2"));
  item = with_scalar(item, "defect", std::string("eps_purple"));
  try {
    find_stage("final_norm").outputs(item);
    FAIL() << "taken";
  } catch (const Refusal& refusal) {
    EXPECT_STREQ(refusal.what(),
                 "final_norm: defect is 'eps_purple', must be none or hidden_not_whole_threads or"
                 " gamma_length or eps_zero");
  }
}

TEST(StageInputs, OutputsHaveALimit) {
  Case item = build_case(parse_line("stage=token_rows;seed=3;requests=1;q_len=2;width=1"));
  item = with_scalar(item, "q", std::int64_t{1} << 25);
  item = with_scalar(item, "n", std::int64_t{1} << 25);
  EXPECT_EQ(refusal_of(item),
            "token_rows: output seq_lens has 33554432 elements of 4 bytes, the limit for all"
            " outputs is 134217728 bytes");
}

TEST(StageInputs, ParametersThatDoNotFitAreRefused) {
  const auto refusal = [](const std::string& line, const char* key, std::int64_t value) {
    return refusal_of(with_scalar(build_case(parse_line(line)), key, value));
  };
  constexpr std::int64_t kTwoTo32 = std::int64_t{1} << 32;
  EXPECT_EQ(refusal("stage=all_reduce;seed=3", "tag", kTwoTo32 + 1),
            "all_reduce: tag is 4294967297, must be -2147483648 to 2147483647");
  EXPECT_EQ(refusal("stage=step_counter;seed=3", "blocks", std::int64_t{1} << 31),
            "step_counter: blocks is 2147483648, must be 1 to 1024");
  EXPECT_EQ(refusal("stage=expert_down;seed=3;rows=2", "wide_from", kTwoTo32), "exact");
  EXPECT_EQ(refusal("stage=attention_merge;seed=3;rows=2", "out_row_gap", 1),
            "attention_merge: out_row_gap is 1, must be a multiple of 8");
  EXPECT_EQ(refusal("stage=decode_step;seed=3", "layers", 61),
            "decode_step: layers is 61, must be 1 to 60");
  EXPECT_EQ(refusal("stage=index_select;seed=3", "block_size", std::int64_t{1} << 30),
            "index_select: block_size is 1073741824, must be 128 to 128");
  EXPECT_EQ(refusal("stage=index_select;seed=3", "ranks", 129),
            "index_select: ranks is 129, must be 1 to 8");
  for (const char* stage : {"token_rows", "qkv_projection", "o_projection", "page16_rebase",
                            "router", "moe_route", "row_quant"})
    for (const std::int64_t value : {std::int64_t{-2}, limits::kRowGap + 1, kTwoTo32})
      EXPECT_EQ(refusal(fmt::format("stage={};seed=3", stage), "out_row_gap", value),
                fmt::format("{}: out_row_gap is {}, must be 0 to 256", stage, value));
}

}  // namespace
}  // namespace monoref
