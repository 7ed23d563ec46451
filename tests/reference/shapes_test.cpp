#include "reference/model/shapes.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "tests/reference/stage_test.hpp"

namespace monoref {
namespace {

using testing::refusal_of;

TEST(ModelShape, DefaultsAreTheModelOfSectionOne) {
  const ModelShape shape;
  EXPECT_EQ(refusal_of([&] { shape.validate(); }), "");
  EXPECT_EQ(shape.pages_per_block(), 8);
  EXPECT_EQ(shape.block_page_stride(), 16);
  EXPECT_EQ(shape.max_blocks(), 8192);
  EXPECT_EQ(shape.partitions(), 8);
  EXPECT_EQ(shape.projection_rows(), 16 * 128 + 128 + 128 + 4 * 128 + 128);
}

TEST(ModelShape, OneIndexHeadGivesTheProjectionOfUpstream) {
  ModelShape shape;
  shape.index_q_heads = 1;
  EXPECT_EQ(shape.projection_rows(), 2560);  // upstream-semantics section 1
}

TEST(ModelShape, SoftmaxScaleOfFourIsExact) {
  ModelShape shape;
  shape.head_dim = 4;
  EXPECT_EQ(shape.softmax_scale(), 0.5);
}

TEST(ModelShape, ServesSmallShapes) {
  ModelShape shape;
  shape.layers = 2;
  shape.dense_layers = 0;
  shape.hidden = 64;
  shape.head_dim = 32;
  shape.rotary_dim = 16;
  shape.local_q_heads = 2;
  shape.inter = 32;
  shape.n_routed = 8;
  shape.shared_expert = 8;
  shape.page16_sides = 1;
  shape.swiglu_limit = std::numeric_limits<double>::infinity();
  EXPECT_EQ(refusal_of([&] { shape.validate(); }), "");
  EXPECT_EQ(shape.block_page_stride(), 8);
}

struct BadNumber {
  const char* message;
  void (*spoil)(ModelShape&);
};

TEST(ModelShape, RefusesNumbersThatContradict) {
  const BadNumber bad[] = {
      {"shape: layers is 0, must be 1 to 1048576", [](ModelShape& s) { s.layers = 0; }},
      {"shape: hidden is 6145, must be a multiple of 32", [](ModelShape& s) { s.hidden = 6145; }},
      {"shape: hidden is 1048608, must be 1 to 1048576", [](ModelShape& s) { s.hidden = 1048608; }},
      {"shape: inter is 8, must be a multiple of 32", [](ModelShape& s) { s.inter = 8; }},
      {"shape: rotary_dim is 130, must be 0 to 128", [](ModelShape& s) { s.rotary_dim = 130; }},
      {"shape: rotary_dim is 63, must be a multiple of 2",
       [](ModelShape& s) { s.rotary_dim = 63; }},
      {"shape: local_q_heads is 16, must be a multiple of 3",
       [](ModelShape& s) { s.local_kv_heads = 3; }},
      {"shape: index_q_heads is 2, must be 1 or tp 4", [](ModelShape& s) { s.index_q_heads = 2; }},
      {"shape: topk_blocks is 65, must be 1 to 64", [](ModelShape& s) { s.topk_blocks = 65; }},
      {"shape: init_blocks is 17, must be 0 to 16", [](ModelShape& s) { s.init_blocks = 17; }},
      {"shape: local_blocks is 9, must be 0 to 8",
       [](ModelShape& s) { s.init_blocks = 8, s.local_blocks = 9; }},
      {"shape: page16_sides is 3, must be 1 to 2", [](ModelShape& s) { s.page16_sides = 3; }},
      {"shape: sparse_block is 120, must be a multiple of 16",
       [](ModelShape& s) { s.sparse_block = 120; }},
      {"shape: split_keys is 192, must be a multiple of 128",
       [](ModelShape& s) { s.split_keys = 192; }},
      {"shape: topk_blocks * sparse_block is 1920, must be a multiple of 256",
       [](ModelShape& s) { s.topk_blocks = 15; }},
      {"shape: max_context is 1000, must be a multiple of 128",
       [](ModelShape& s) { s.max_context = 1000; }},
      {"shape: dense_layers is 60, must be 0 to 59", [](ModelShape& s) { s.dense_layers = 60; }},
      {"shape: top_k is 129, must be 1 to 128", [](ModelShape& s) { s.top_k = 129; }},
      {"shape: shared_expert is 5, must be 128 to 128", [](ModelShape& s) { s.shared_expert = 5; }},
      {"shape: wave is 16, must be 32 or 64", [](ModelShape& s) { s.wave = 16; }},
      {"shape: block_threads is 96, must be a multiple of 64",
       [](ModelShape& s) { s.block_threads = 96; }},
      {"shape: swiglu_limit is 0, must be above 0", [](ModelShape& s) { s.swiglu_limit = 0; }},
      {"shape: rms_eps is nan, must be above 0",
       [](ModelShape& s) { s.rms_eps = std::numeric_limits<double>::quiet_NaN(); }},
      {"shape: swiglu_beta is inf, must be finite",
       [](ModelShape& s) { s.swiglu_beta = std::numeric_limits<double>::infinity(); }},
  };
  for (const BadNumber& number : bad) {
    ModelShape shape;
    number.spoil(shape);
    EXPECT_EQ(refusal_of([&] { shape.validate(); }), number.message);
  }
}

}  // namespace
}  // namespace monoref
