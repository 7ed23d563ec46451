// Sound cases with one thing changed to what no generator draws: an element, a parameter, an
// extent, the distance of rows. The right kernels must still be right, or the case be refused in
// the name of its stage.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "device/backend.hpp"
#include "fuzz/generator.hpp"
#include "fuzz/inputs.hpp"
#include "fuzz/random.hpp"
#include "fuzz/runner.hpp"

namespace monoref {
namespace {

/// Words that are an end, or next to one, of some type of their size.
constexpr std::uint64_t kWords[] = {0,
                                    1,
                                    7,
                                    0x7F,
                                    0x80,
                                    0xFF,
                                    0x7FC0,
                                    0x7F80,
                                    0xFF80,
                                    0xFFFF,
                                    0x7F800000,
                                    0xFF800000,
                                    0x7FC00000,
                                    0x7FFFFFFF,
                                    0x80000000,
                                    0xFFFFFFFF,
                                    0x00000001'00000000,
                                    0x7FFFFFFF'FFFFFFFF,
                                    0x80000000'00000000,
                                    0xFFFFFFFF'FFFFFFFF};
constexpr std::int64_t kNumbers[] = {0,  1,  2,  3,   7,   8,    15,   16,
                                     17, 31, 64, 127, 128, 1000, 4096, 65536};

std::int64_t below(CounterRandom& random, std::size_t count) {
  return random.below(static_cast<std::int64_t>(count));
}

/// Changes some stored element, and says which.
std::string spoil_element(NamedTensor& input, CounterRandom& random) {
  Tensor& tensor = input.tensor;
  if (tensor.layout().extents.empty()) return "nothing";
  const auto& extents = tensor.layout().extents;
  const Extent& extent = extents[static_cast<std::size_t>(below(random, extents.size()))];
  const std::int64_t at = extent.offset + random.below(extent.count);
  const std::uint64_t word = kWords[below(random, std::size(kWords))];
  std::memcpy(tensor.base() + at * static_cast<std::int64_t>(tensor.element_size()), &word,
              std::min<std::size_t>(tensor.element_size(), sizeof(word)));
  return fmt::format("{} element {} as {:x}", input.name, at, word);
}

/// Another extent or stride, with as much storage as that needs.
std::string spoil_layout(NamedTensor& input, CounterRandom& random) {
  std::vector<std::int64_t> dims = input.tensor.dims();
  std::vector<std::int64_t> strides = input.tensor.layout().strides;
  if (dims.empty()) return "nothing";
  const auto axis = static_cast<std::size_t>(below(random, dims.size()));
  if (random.once_in(2)) {
    dims[axis] = std::max<std::int64_t>(dims[axis] + random.between(-2, 2), 0);
    strides = Layout::dense(dims).strides;
  } else {
    strides[axis] += random.between(-1, 9);
  }
  if (strides[axis] < 0 || input.tensor.layout().extents.size() > 1) return "nothing";
  Tensor changed(input.tensor.type(), Layout::strided(dims, strides));
  changed.fill_bytes(std::byte{0x01});
  input.tensor = std::move(changed);
  return fmt::format("{} with dims [{}], strides [{}]", input.name, fmt::join(dims, ", "),
                     fmt::join(strides, ", "));
}

std::string spoil_scalar(NamedScalar& scalar, CounterRandom& random) {
  if (auto* number = std::get_if<std::int64_t>(&scalar.value)) {
    *number = random.once_in(2) ? *number + random.between(-2, 2)
                                : kNumbers[below(random, std::size(kNumbers))];
    return fmt::format("{} {}", scalar.name, *number);
  }
  if (auto* number = std::get_if<double>(&scalar.value)) {
    constexpr double kReals[] = {0.0,    -0.0,  -1.0,   1e-45,  1e-30, 1e30,
                                 3.4e38, 1e308, -1e308, 1e-300, 1.0,   448.0};
    *number = kReals[below(random, std::size(kReals))];
    return fmt::format("{} {}", scalar.name, *number);
  }
  return "nothing";
}

std::string spoil(Case& item, CounterRandom& random) {
  const bool has_numbers = item.scalars.size() > 1;
  if (has_numbers && (item.inputs.empty() || random.once_in(3))) {
    NamedScalar& scalar =
        item.scalars[static_cast<std::size_t>(below(random, item.scalars.size()))];
    return spoil_scalar(scalar, random);
  }
  NamedTensor& input = item.inputs[static_cast<std::size_t>(below(random, item.inputs.size()))];
  return random.once_in(2) ? spoil_element(input, random) : spoil_layout(input, random);
}

class HostileCases : public testing::TestWithParam<std::string> {};

TEST_P(HostileCases, AreRefusedOrJudgedRight) {
  const Stage& stage = find_stage(GetParam());
  KernelRunner wave64(device::make_host_backend(64));
  KernelRunner wave32(device::make_host_backend(32));
  const std::uint64_t count = stage.chain ? 12 : 120;
  for (std::uint64_t seed = 1; seed <= count; ++seed) {
    CounterRandom random(seed, "hostile");
    const Draw draw = draw_case(stage, 20, seed, std::nullopt);
    Case item = build_case(stage, draw.params, draw.contract, draw.seed);
    for (NamedScalar& scalar : item.scalars)
      if (scalar.name == "defect") scalar.value = std::string("none");
    item.line.clear();
    const std::string what = spoil(item, random);
    const CaseResult result =
        judge_case(stage, item, {.runners = {&wave64, &wave32}, .properties = true});
    const RunResult* decisive = result.decisive();
    const std::string message =
        decisive == nullptr ? "" : decisive->runner + ": " + decisive->message;
    EXPECT_FALSE(is_failure(result.verdict()))
        << "seed " << seed << ", " << what << ": " << message
        << (decisive != nullptr && decisive->first_difference ? decisive->first_difference->text()
                                                              : "");
    if (result.verdict() == Verdict::kRefused) {
      EXPECT_NE(message.find(stage.name), std::string::npos)
          << "seed " << seed << ", " << what << ": " << message;
    }
  }
}

std::vector<std::string> listing_stages() {
  std::vector<std::string> names;
  for (const Stage& stage : all_stages())
    if (!stage.inputs.empty()) names.emplace_back(stage.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Stages, HostileCases, testing::ValuesIn(listing_stages()),
                         [](const auto& stage) { return stage.param; });

}  // namespace
}  // namespace monoref
