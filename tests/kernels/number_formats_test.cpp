// The kernels' conversions on every input that can decide something, against a search for the
// nearest value, and their portable functions against arithmetic in more bits.
#include <cmath>
#include <limits>

#include "tests/kernels/bench.hpp"
#include "tests/kernels/number_model.hpp"

namespace monoref::device {
namespace {

struct Format {
  int wave;
  bool fnuz;
  bool saturates;
};

std::string format_name(const ::testing::TestParamInfo<Format>& format) {
  return std::string(format.param.fnuz ? "Fnuz" : "Fn") +
         (format.param.saturates ? "Saturating" : "") + std::to_string(format.param.wave);
}

/// Number x with its two neighbours, of either sign.
void add_around(std::vector<float>& values, float x) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float value : {x, std::nextafter(x, infinity), std::nextafter(x, 0.0F)}) {
    values.push_back(value);
    values.push_back(-value);
  }
}

/// Every BF16 number, every NaN and infinity among them.
std::vector<float> all_bf16() {
  std::vector<float> values;
  for (std::uint32_t code = 0; code < 0x10000; ++code)
    values.push_back(decode_bf16(static_cast<std::uint16_t>(code)));
  return values;
}

/// What rounding to E4M3 may trip over: all BF16, all values and midpoints with their neighbours,
/// the ends of binary32, and numbers of all sizes.
std::vector<float> e4m3_inputs(const E4m3Model& model) {
  std::vector<float> values = all_bf16();
  for (int code = 0; code <= model.largest(); ++code) {
    add_around(values, static_cast<float>(model.magnitude(code)));
    add_around(values, static_cast<float>((model.magnitude(code) + model.magnitude(code + 1)) / 2));
  }
  for (const float end : {std::numeric_limits<float>::denorm_min(),
                          std::numeric_limits<float>::min(), std::numeric_limits<float>::max()})
    add_around(values, end);
  values.push_back(float_from_bits(0x7F800001));
  values.push_back(float_from_bits(0xFFFFFFFF));
  Draws draws(1);
  for (int i = 0; i < 200000; ++i) values.push_back(draws.number(-14, 10));
  for (int i = 0; i < 50000; ++i) values.push_back(float_from_bits(draws.bits()));
  return values;
}

class E4m3Conversion : public ::testing::TestWithParam<Format> {};
INSTANTIATE_TEST_SUITE_P(Formats, E4m3Conversion,
                         ::testing::Values(Format{64, false, false}, Format{64, false, true},
                                           Format{64, true, false}, Format{64, true, true},
                                           Format{32, false, false}, Format{32, true, true}),
                         format_name);

TEST_P(E4m3Conversion, EncodesTheNearestValue) {
  const E4m3Model model(GetParam().fnuz, GetParam().saturates);
  const std::vector<float> inputs = e4m3_inputs(model);
  KernelBench bench(GetParam().wave);
  const auto values = bench.add(inputs);
  const auto codes = bench.add(std::vector<std::uint8_t>(inputs.size(), 0xAA));
  bench.launch("monoref_encode_e4m3", grid_of(2, 64), values, codes,
               static_cast<i64>(inputs.size()), i32{GetParam().fnuz}, i32{GetParam().saturates});
  const auto got = bench.read<std::uint8_t>(codes);
  for (std::size_t i = 0; i < inputs.size(); ++i)
    ASSERT_EQ(got[i], model.encode(inputs[i])) << inputs[i] << " (" << std::hexfloat << inputs[i];
}

TEST_P(E4m3Conversion, DecodesEveryCode) {
  const E4m3Model model(GetParam().fnuz, GetParam().saturates);
  std::vector<std::uint8_t> inputs;
  for (int code = 0; code < 0x100; ++code) inputs.push_back(static_cast<std::uint8_t>(code));
  KernelBench bench(GetParam().wave);
  const auto codes = bench.add(inputs);
  const auto values = bench.add(std::vector<float>(0x100, -1.0F));
  bench.launch("monoref_decode_e4m3", grid_of(1, 64), codes, values, i64{0x100},
               i32{GetParam().fnuz});
  const auto got = bench.read<float>(values);
  for (std::size_t code = 0; code < 0x100; ++code)
    EXPECT_EQ(stored_bits(got[code]), stored_bits(model.decode(static_cast<int>(code)))) << code;
}

/// Bug cases F02, F03, F04, F06 and F16 with the codes that they give.
TEST(E4m3BugCases, GiveTheStatedCodes) {
  struct Example {
    float value;
    bool fnuz, saturates;
    int code;
  };
  const std::vector<Example> examples = {
      {128.0F, true, false, 0x78},
      {240.0F, true, false, 0x7F},
      {256.0F, false, false, 0x78},
      {-1e-7F, true, false, 0x00},
      {-0x1p-11F, true, false, 0x00},
      {-0.0F, true, false, 0x00},
      {-0.0F, false, false, 0x80},
      {448.0F, false, false, 0x7E},
      {464.0F, false, false, 0x7E},
      {465.0F, false, false, 0x7F},
      {464.0001F, false, false, 0x7F},
      {465.0F, false, true, 0x7E},
      {-1e4F, false, true, 0xFE},
      {448.0F, true, true, 0x7F},
      {448.0F, true, false, 0x80},
      // Just above the midpoint of 1 and 1.125, where a step through a narrower format ties.
      {1.0625F * (1 + 0x1p-13F), false, false, 0x39}};
  for (const Example& example : examples) {
    KernelBench bench(64);
    const auto values = bench.add(std::vector<float>{example.value});
    const auto codes = bench.add(std::vector<std::uint8_t>{0x55});
    bench.launch("monoref_encode_e4m3", grid_of(1, 64), values, codes, i64{1}, i32{example.fnuz},
                 i32{example.saturates});
    EXPECT_EQ(bench.read<std::uint8_t>(codes)[0], example.code) << example.value;
  }
}

class Numbers : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Waves, Numbers, ::testing::Values(64, 32));

TEST_P(Numbers, Bf16EncodesTheNearerNeighbour) {
  std::vector<float> inputs = all_bf16();
  for (std::uint32_t code = 0; code < 0x10000; ++code)
    for (const std::uint32_t low : {1U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU})
      inputs.push_back(float_from_bits(code << 16 | low));
  KernelBench bench(GetParam());
  const auto values = bench.add(inputs);
  const auto codes = bench.add(std::vector<std::uint16_t>(inputs.size(), 0xAAAA));
  bench.launch("monoref_encode_bf16", grid_of(2, 64), values, codes,
               static_cast<i64>(inputs.size()));
  const auto got = bench.read<std::uint16_t>(codes);
  for (std::size_t i = 0; i < inputs.size(); ++i)
    ASSERT_EQ(got[i], encode_bf16(inputs[i])) << std::hexfloat << inputs[i];
}

TEST_P(Numbers, Bf16DecodesEveryCode) {
  std::vector<std::uint16_t> inputs;
  for (std::uint32_t code = 0; code < 0x10000; ++code)
    inputs.push_back(static_cast<std::uint16_t>(code));
  KernelBench bench(GetParam());
  const auto codes = bench.add(inputs);
  const auto values = bench.add(std::vector<float>(inputs.size(), -1.0F));
  bench.launch("monoref_decode_bf16", grid_of(2, 64), codes, values,
               static_cast<i64>(inputs.size()));
  const auto got = bench.read<float>(values);
  for (std::uint32_t code = 0; code < 0x10000; ++code) {
    const bool nan = (code & 0x7FFF) > 0x7F80;
    EXPECT_EQ(std::bit_cast<std::uint32_t>(got[code]), nan ? kNanBits : code << 16) << code;
  }
}

/// Numbers of all sizes: every sign and exponent, with many mantissas, and a fine range around 0.
std::vector<float> function_inputs() {
  std::vector<float> values = all_bf16();
  Draws draws(2);
  for (int i = 0; i < 200000; ++i) values.push_back(float_from_bits(draws.bits()));
  for (int i = 0; i < 200000; ++i) values.push_back(draws.number(-6, 7));
  for (int n = -152; n <= 130; ++n) add_around(values, static_cast<float>(n) / 2);
  for (int n = -152; n <= 130; ++n) add_around(values, static_cast<float>(n));
  return values;
}

/// Whether `got` is 2^x within one unit of the last place that binary32 has at 2^x.
bool within_one_ulp(float x, float got) {
  const double exact = std::exp2(static_cast<double>(x));
  if (exact >= 0x1p128) return std::isinf(got);
  const int exponent = std::max(std::ilogb(exact), -126);
  return std::fabs(static_cast<double>(got) - exact) <= std::ldexp(1.0, exponent - 23);
}

TEST_P(Numbers, PortableFunctions) {
  const std::vector<float> x = function_inputs();
  KernelBench bench(GetParam());
  const auto in = bench.add(x);
  const auto rcp = bench.add(x), rsq = bench.add(x), exp2 = bench.add(x);
  bench.launch("monoref_portable_functions", grid_of(2, 64), in, rcp, rsq, exp2,
               static_cast<i64>(x.size()));
  const auto reciprocals = bench.read<float>(rcp), roots = bench.read<float>(rsq),
             powers = bench.read<float>(exp2);
  for (std::size_t i = 0; i < x.size(); ++i) {
    // A quotient or root of binary32 numbers, rounded to binary64 and then to binary32, is the
    // correctly rounded one: binary64 has more than twice the digits.
    const double wide = x[i];
    const auto root = static_cast<double>(static_cast<float>(std::sqrt(wide)));
    ASSERT_EQ(std::bit_cast<std::uint32_t>(reciprocals[i]),
              stored_bits(static_cast<float>(1.0 / wide)))
        << std::hexfloat << x[i];
    ASSERT_EQ(std::bit_cast<std::uint32_t>(roots[i]), stored_bits(static_cast<float>(1.0 / root)))
        << std::hexfloat << x[i];
    if (std::isnan(x[i]))
      ASSERT_EQ(std::bit_cast<std::uint32_t>(powers[i]), kNanBits);
    else
      ASSERT_TRUE(within_one_ulp(x[i], powers[i])) << std::hexfloat << x[i] << " " << powers[i];
  }
}

TEST_P(Numbers, PowersOfWholeNumbersAreExact) {
  std::vector<float> x, expected;
  for (int n = -149; n <= 127; ++n) {
    x.push_back(static_cast<float>(n));
    expected.push_back(std::ldexp(1.0F, n));
  }
  KernelBench bench(GetParam());
  const auto in = bench.add(x);
  const auto rcp = bench.add(x), rsq = bench.add(x), exp2 = bench.add(x);
  bench.launch("monoref_portable_functions", grid_of(1, 64), in, rcp, rsq, exp2,
               static_cast<i64>(x.size()));
  EXPECT_EQ(bench.read<float>(exp2), expected);
}

}  // namespace
}  // namespace monoref::device
