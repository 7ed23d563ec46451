#include "reference/model/decode_step.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <utility>

#include "reference/formats/convert.hpp"
#include "reference/stages/final_norm.hpp"
#include "tests/before_attention/numbers.hpp"
#include "tests/reference/stage_test.hpp"

namespace monoref::testing {
namespace {

constexpr std::int64_t kHidden = 32;

ModelShape small_shape(std::int64_t layers, std::int64_t dense) {
  ModelShape shape;
  shape.layers = layers;
  shape.dense_layers = dense;
  shape.hidden = kHidden;
  shape.max_tokens = 8;
  return shape;
}

StepRequest step_of(std::int64_t rows) {
  StepRequest request;
  request.tokens = rows;
  request.block_table_rows = request.seq_lens_rows = request.slot_mapping_entries = rows;
  return request;
}

Codes codes_of(const Tensor& tensor) {
  const auto* first = reinterpret_cast<const std::uint16_t*>(tensor.base());
  return {first, first + tensor.layout().elements()};
}

Codes draw_rows(std::int64_t rows, Random& random) {
  Codes codes;
  for (std::int64_t i = 0; i < rows * kHidden; ++i)
    codes.push_back(
        static_cast<std::uint16_t>(random.between(0x3E00, 0x4080) + 0x8000 * random.between(0, 1)));
  return codes;
}

/// A layer that stands for a sparse one: half of its input, the residual, the input of the row
/// behind it (the first one's behind the last) and the layer's number. So rows beyond the step's
/// would show, and so would another layer's buffers.
void mixing_layer(std::int64_t layer_id, std::int32_t, const SparseLayerRows& rows) {
  const std::int64_t n = rows.ar.dim(0);
  for (std::int64_t row = 0; row < n; ++row)
    for (std::int64_t i = 0; i < rows.ar.dim(1); ++i) {
      const float ar = float_from_bf16(rows.ar(row, i));
      const float res = float_from_bf16(rows.res(row, i));
      const float next = float_from_bf16(rows.ar((row + 1) % n, i));
      rows.h_mid(row, i) = bf16_from_float(ar + res);
      rows.ar_out(row, i) =
          bf16_from_float(ar / 2 + res / 4 + next / 8 + static_cast<float>(layer_id));
    }
}

Codes ones() {
  return Codes(kHidden, bf16(0.5f));
}

StepModel model_of(const ModelShape& shape, SparseLayer sparse = mixing_layer) {
  return {.shape = shape,
          .dense =
              [gamma = ones()](std::int64_t, const ConstHiddenRows& hidden,
                               const ConstHiddenRows* residual) {
                return dense_stand_in(hidden, residual, {gamma.data(), {kHidden}, {1}}, 1e-6);
              },
          .sparse = std::move(sparse),
          .final_gamma = ones()};
}

DecodeRunner runner_of(StepModel model) {
  const BuildRequest build = BuildRequest::of(model.shape);
  return {std::move(model), build, {.kv = 0x1000, .index = 0x2000}};
}

StepOutput run(DecodeRunner& runner, Codes& embeddings) {
  const std::int64_t rows = static_cast<std::int64_t>(embeddings.size()) / kHidden;
  return runner.forward(step_of(rows), matrix_view(embeddings, rows));
}

/// final_norm of two rows of numbers, with the weights of the model above.
Codes normed(Codes ar, Codes res) {
  const std::int64_t rows = static_cast<std::int64_t>(ar.size()) / kHidden;
  Codes gamma = ones();
  Codes out(ar.size());
  final_norm({matrix_view(ar, rows), matrix_view(res, rows), row_view(gamma), 1e-6},
             {matrix_view(out, rows)});
  return out;
}

TEST(DecodeStep, LayersTakeTheTwoBuffersInTurn) {
  struct Call {
    std::int64_t layer;
    const std::uint16_t *ar, *res, *ar_out, *h_mid;
  };
  std::vector<Call> calls;
  DecodeRunner runner = runner_of(model_of(
      small_shape(5, 0), [&](std::int64_t layer, std::int32_t, const SparseLayerRows& rows) {
        calls.push_back(
            {layer, rows.ar.data(), rows.res.data(), rows.ar_out.data(), rows.h_mid.data()});
        mixing_layer(layer, 0, rows);
      }));
  Codes embeddings(3 * kHidden, bf16(1));
  run(runner, embeddings);
  ASSERT_EQ(calls.size(), 5u);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(calls[i].layer, static_cast<std::int64_t>(i));
    EXPECT_EQ(calls[i].ar, calls[i % 2].ar) << "by parity";
    EXPECT_EQ(calls[i].h_mid, calls[i % 2].h_mid);
    EXPECT_NE(calls[i].ar, calls[i].ar_out);
    EXPECT_NE(calls[i].res, calls[i].h_mid);
    if (i == 0) continue;
    EXPECT_EQ(calls[i].ar, calls[i - 1].ar_out) << "what the layer before wrote";
    EXPECT_EQ(calls[i].res, calls[i - 1].h_mid);
  }
  EXPECT_NE(calls[0].res, calls[1].h_mid) << "zeros of its own, not a buffer";
}

TEST(DecodeStep, WithoutDenseLayersTheFirstLayerReadsTheEmbeddingsAndZeros) {
  Codes ar;
  Codes res;
  DecodeRunner runner = runner_of(model_of(
      small_shape(1, 0), [&](std::int64_t layer, std::int32_t, const SparseLayerRows& rows) {
        for (std::int64_t i = 0; i < kHidden; ++i) {
          ar.push_back(rows.ar(0, i));
          res.push_back(rows.res(0, i));
        }
        mixing_layer(layer, 0, rows);
      }));
  Codes embeddings(kHidden, 0xFFC5);
  embeddings[1] = 0x8000;
  run(runner, embeddings);
  EXPECT_EQ(ar, embeddings) << "copied, the bits of NaN and -0 too";
  EXPECT_EQ(res, Codes(kHidden, 0));
}

TEST(DecodeStep, TheWholeStepByPlainLoops) {
  // Layers 0 and 1 are dense, 2 to 4 sparse; nothing here knows of two buffers.
  DecodeRunner runner = runner_of(model_of(small_shape(5, 2)));
  Random random(1);
  Codes embeddings = draw_rows(3, random);
  Codes residual = embeddings;
  Codes hidden = normed(embeddings, Codes(embeddings.size(), 0));
  Codes sum;
  for (std::size_t i = 0; i < hidden.size(); ++i)
    sum.push_back(bf16_from_float(testing::from_bf16(hidden[i]) + testing::from_bf16(residual[i])));
  hidden = normed(hidden, residual);
  residual = sum;
  for (std::int64_t layer = 2; layer < 5; ++layer) {
    Codes ar_out(hidden.size());
    Codes h_mid(hidden.size());
    mixing_layer(layer, 0,
                 {matrix_view(hidden, 3), matrix_view(residual, 3), matrix_view(ar_out, 3),
                  matrix_view(h_mid, 3)});
    hidden = ar_out;
    residual = h_mid;
  }
  EXPECT_EQ(codes_of(run(runner, embeddings).hidden), normed(hidden, residual));
}

TEST(DecodeStep, AuxiliaryStatesAreTheSumsAfterTheLayersAskedFor) {
  // Layers 0 (dense), 1 and 2 (sparse) turn (hidden, residual) into: (1, none), then (2, 4),
  // (3, 8), (5, 16).
  StepModel model = model_of(small_shape(3, 1),
                             [](std::int64_t layer, std::int32_t, const SparseLayerRows& rows) {
                               for (std::int64_t row = 0; row < rows.ar.dim(0); ++row)
                                 for (std::int64_t i = 0; i < kHidden; ++i) {
                                   rows.ar_out(row, i) = bf16(layer == 1 ? 3 : 5);
                                   rows.h_mid(row, i) = bf16(layer == 1 ? 8 : 16);
                                 }
                             });
  model.dense = [](std::int64_t, const ConstHiddenRows& hidden, const ConstHiddenRows* residual) {
    EXPECT_EQ(residual, nullptr);
    const std::vector<std::int64_t> dims{hidden.dim(0), hidden.dim(1)};
    const auto count = static_cast<std::size_t>(dims[0] * dims[1]);
    return DenseLayerRows{Tensor::of(DType::kBFloat16, dims, Codes(count, bf16(2))),
                          Tensor::of(DType::kBFloat16, dims, Codes(count, bf16(4)))};
  };
  const float states[] = {1, 6, 11, 21};  // by index
  Codes embeddings(2 * kHidden, bf16(1));
  const std::vector<std::vector<std::int64_t>> wishes{{},  {0},          {1},    {2},
                                                      {3}, {0, 1, 2, 3}, {3, 1}, {2, 2}};
  for (const auto& wish : wishes) {
    StepModel asked = model;
    asked.auxiliary_layers = wish;
    DecodeRunner runner = runner_of(std::move(asked));
    const StepOutput output = run(runner, embeddings);
    const std::set<std::int64_t> ordered(wish.begin(), wish.end());
    ASSERT_EQ(output.auxiliary.size(), ordered.size());
    std::size_t at = 0;
    for (const std::int64_t index : ordered)
      EXPECT_EQ(codes_of(output.auxiliary[at++]), Codes(2 * kHidden, bf16(states[index])))
          << "index " << index;
  }
}

TEST(DecodeStep, TheFirstAuxiliaryStateWithoutDenseLayersIsTheEmbeddingAlone) {
  StepModel model = model_of(small_shape(1, 0));
  model.auxiliary_layers = {0, 1};
  DecodeRunner runner = runner_of(std::move(model));
  Codes embeddings(kHidden, 0x8000);
  const StepOutput output = run(runner, embeddings);
  ASSERT_EQ(output.auxiliary.size(), 2u);
  EXPECT_EQ(codes_of(output.auxiliary[0]), embeddings) << "-0 + 0 would be +0";
}

TEST(DecodeStep, TheCounterGoesUpOncePerStepAndWrapsAround) {
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  std::vector<std::int32_t> seen;
  DecodeRunner runner = runner_of(model_of(
      small_shape(4, 1), [&](std::int64_t layer, std::int32_t step, const SparseLayerRows& rows) {
        seen.push_back(step);
        mixing_layer(layer, step, rows);
      }));
  Codes embeddings(kHidden, bf16(1));
  EXPECT_EQ(runner.step(), 0);
  run(runner, embeddings);
  run(runner, embeddings);
  EXPECT_EQ(seen, (std::vector<std::int32_t>{0, 0, 0, 1, 1, 1})) << "the same in all layers";
  EXPECT_EQ(runner.step(), 2);
  runner.set_step(kMost);
  run(runner, embeddings);
  EXPECT_EQ(runner.step(), -kMost - 1);
}

TEST(DecodeStep, D03CachesThatMovedMakeTheRunnerStale) {
  const DecodeRunner runner = runner_of(model_of(small_shape(1, 0)));
  EXPECT_FALSE(runner.stale({.kv = 0x1000, .index = 0x2000}));
  EXPECT_TRUE(runner.stale({.kv = 0x1001, .index = 0x2000}));
  EXPECT_TRUE(runner.stale({.kv = 0x1000, .index = 0x3000}));
  EXPECT_TRUE(runner.stale({.kv = 0x2000, .index = 0x1000}));
}

TEST(DecodeStep, D04StepsThroughUsedBuffersEqualStepsThroughFreshOnes) {
  for (const std::int64_t dense : {0, 1, 3})
    for (const std::int64_t layers : {4, 5}) {
      StepModel model = model_of(small_shape(layers, dense));
      model.auxiliary_layers = {0, dense, layers};
      DecodeRunner used = runner_of(model);
      Random random(static_cast<std::uint64_t>(10 * dense + layers));
      for (const std::int64_t rows : {8, 4, 1, 8, 2, 3}) {
        Codes embeddings = draw_rows(rows, random);
        DecodeRunner fresh = runner_of(model);
        const StepOutput one = run(used, embeddings);
        const StepOutput other = run(fresh, embeddings);
        EXPECT_EQ(codes_of(one.hidden), codes_of(other.hidden)) << rows << " rows";
        ASSERT_EQ(one.auxiliary.size(), other.auxiliary.size());
        for (std::size_t i = 0; i < one.auxiliary.size(); ++i)
          EXPECT_EQ(codes_of(one.auxiliary[i]), codes_of(other.auxiliary[i])) << rows << " rows";
      }
      EXPECT_EQ(used.step(), 6);
    }
}

TEST(DecodeStep, D01AroundLayersThatTreatRowsByThemselvesARowIsTheSameInAnyBatch) {
  const auto alone_layer = [](std::int64_t layer, std::int32_t step, const SparseLayerRows& rows) {
    for (std::int64_t row = 0; row < rows.ar.dim(0); ++row) {
      const auto one = [&](const auto& all) {
        return std::decay_t<decltype(all)>(&all(row, 0), {1, kHidden}, {kHidden, 1});
      };
      mixing_layer(layer, step, {one(rows.ar), one(rows.res), one(rows.ar_out), one(rows.h_mid)});
    }
  };
  DecodeRunner runner = runner_of(model_of(small_shape(5, 2), alone_layer));
  Random random(3);
  Codes batch = draw_rows(8, random);
  const Codes together = codes_of(run(runner, batch).hidden);
  for (std::ptrdiff_t row = 0; row < 8; ++row) {
    Codes alone(batch.begin() + row * kHidden, batch.begin() + (row + 1) * kHidden);
    EXPECT_EQ(codes_of(run(runner, alone).hidden),
              Codes(together.begin() + row * kHidden, together.begin() + (row + 1) * kHidden));
  }
}

TEST(DecodeStep, ARefusedStepChangesNothing) {
  std::int64_t layers_run = 0;
  DecodeRunner runner = runner_of(model_of(
      small_shape(2, 0), [&](std::int64_t layer, std::int32_t step, const SparseLayerRows& rows) {
        ++layers_run;
        mixing_layer(layer, step, rows);
      }));
  Codes embeddings(9 * kHidden, bf16(1));
  EXPECT_EQ(refusal_of([&] { run(runner, embeddings); }), "step: tokens is 9, must be 1 to 8");
  StepRequest prefill = step_of(8);
  prefill.prefills = 1;
  Codes eight(8 * kHidden, bf16(1));
  EXPECT_EQ(refusal_of([&] { runner.forward(prefill, matrix_view(eight, 8)); }),
            "step: prefills is 1, must be 0");
  EXPECT_EQ(refusal_of([&] { runner.forward(step_of(8), matrix_view(eight, 4)); }),
            "step: embeddings has 4 in dimension 0, must have 8");
  EXPECT_EQ(runner.step(), 0);
  EXPECT_EQ(layers_run, 0);
}

TEST(DecodeStep, BuildRefusals) {
  const auto refused = [](StepModel model, const BuildRequest& build) {
    return refusal_of([&] { DecodeRunner(std::move(model), build, {}); });
  };
  const ModelShape shape = small_shape(3, 1);
  BuildRequest build = BuildRequest::of(shape);
  EXPECT_EQ(refused(model_of(shape), build), "");
  build.tensor_parallel_size = 8;
  EXPECT_EQ(refused(model_of(shape), build), "build: tensor_parallel_size is 8, must be 4");
  EXPECT_EQ(refused(model_of(shape), BuildRequest::of(small_shape(3, 2))),
            "build: layers hold 2 dense ones, must hold 1");
  build = BuildRequest::of(shape);
  StepModel model = model_of(shape);
  model.final_gamma.pop_back();
  EXPECT_EQ(refused(model, build), "final_norm: gamma has 31 in dimension 0, must have 32");
  model = model_of(shape);
  for (const std::int64_t index : {-1, 4}) {
    model.auxiliary_layers = {1, index};
    EXPECT_EQ(refused(model, build),
              fmt::format("auxiliary states: index is {}, must be 0 to 3", index));
  }
}

TEST(DenseStandIn, NormOfTheSumAndTheSumItself) {
  // Sums of 3 and 1 in turn: mean square 5, eps 4, root 1/3; weights of 1.5.
  Codes hidden(kHidden, bf16(2));
  Codes residual(kHidden, bf16(1));
  for (std::size_t i = 1; i < kHidden; i += 2) residual[i] = bf16(-1);
  Codes gamma = ones();
  const ConstHiddenRows beside = matrix_view(residual, 1);
  const DenseLayerRows rows = dense_stand_in(matrix_view(hidden, 1), &beside, row_view(gamma), 4);
  for (std::size_t i = 0; i < kHidden; ++i) {
    EXPECT_EQ(codes_of(rows.residual)[i], bf16(i % 2 == 0 ? 3 : 1));
    EXPECT_EQ(codes_of(rows.hidden)[i], bf16(i % 2 == 0 ? 1.5f : 0.5f));
  }
  const DenseLayerRows first = dense_stand_in(matrix_view(hidden, 1), nullptr, row_view(gamma), 1);
  EXPECT_EQ(codes_of(first.residual), hidden);
}

}  // namespace
}  // namespace monoref::testing
