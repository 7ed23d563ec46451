#include "reference/model/decode_step.hpp"

#include <optional>
#include <utility>

#include "reference/rules/stage_checks.hpp"
#include "reference/stages/auxiliary_state.hpp"
#include "reference/stages/final_norm.hpp"

namespace monoref {
namespace {

Tensor rows_tensor(std::int64_t rows, std::int64_t hidden) {
  return {DType::kBFloat16, Layout::dense({rows, hidden})};
}

Tensor added(const ConstHiddenRows& hidden, const ConstHiddenRows* residual) {
  Tensor sum = rows_tensor(hidden.dim(0), hidden.dim(1));
  auxiliary_state({hidden, residual == nullptr ? std::nullopt : std::optional(*residual)},
                  {sum.view<std::uint16_t, 2>()});
  return sum;
}

View<const std::uint16_t, 1> vector_view(const std::vector<std::uint16_t>& values) {
  return {values.data(), {static_cast<std::int64_t>(values.size())}, {1}};
}

}  // namespace

DenseLayerRows dense_stand_in(const ConstHiddenRows& hidden, const ConstHiddenRows* residual,
                              const View<const std::uint16_t, 1>& gamma, double eps) {
  const Tensor zeros = rows_tensor(hidden.dim(0), hidden.dim(1));
  DenseLayerRows rows{rows_tensor(hidden.dim(0), hidden.dim(1)), added(hidden, residual)};
  final_norm({hidden, residual == nullptr ? zeros.view<std::uint16_t, 2>() : *residual, gamma, eps},
             {rows.hidden.view<std::uint16_t, 2>()});
  return rows;
}

AuxiliaryStates::AuxiliaryStates(std::span<const std::int64_t> indices, std::int64_t layers)
    : wanted_(indices.begin(), indices.end()) {
  for (const std::int64_t index : wanted_)
    if (index < 0 || index > layers)
      refuse("auxiliary states: index is {}, must be 0 to {}", index, layers);
}

void AuxiliaryStates::offer(std::int64_t index, const ConstHiddenRows& hidden,
                            const ConstHiddenRows* residual) {
  if (wanted_.contains(index)) states_.push_back(added(hidden, residual));
}

DecodeRunner::DecodeRunner(StepModel model, const BuildRequest& build, CacheAddresses caches,
                           AdmissionRules rules)
    : model_(std::move(model)), rules_(rules), caches_(caches) {
  const ModelShape& shape = model_.shape;
  if (const auto refused = admit_build(build, shape, rules)) throw Refusal(refused->message);
  if (const std::int64_t dense = dense_prefix(build.layers); dense != shape.dense_layers)
    refuse("build: layers hold {} dense ones, must hold {}", dense, shape.dense_layers);
  for (Tensor* buffer : {&ars_[0], &ars_[1], &h_mids_[0], &h_mids_[1], &no_residual_})
    *buffer = rows_tensor(shape.max_tokens, shape.hidden);
  const ConstHiddenRows zeros = no_residual_.view<std::uint16_t, 2>();
  static_cast<void>(
      final_norm_shape({zeros, zeros, vector_view(model_.final_gamma), shape.rms_eps}));
  static_cast<void>(AuxiliaryStates(model_.auxiliary_layers, shape.layers));
}

HiddenRows DecodeRunner::first_rows(Tensor& buffer, std::int64_t rows) const {
  return {buffer.view<std::uint16_t, 2>().data(),
          {rows, model_.shape.hidden},
          {model_.shape.hidden, 1}};
}

ConstHiddenRows DecodeRunner::start(const ConstHiddenRows& embeddings, AuxiliaryStates& auxiliary) {
  ConstHiddenRows hidden = embeddings;
  std::optional<ConstHiddenRows> residual;
  const auto offer = [&](std::int64_t index) {
    auxiliary.offer(index, hidden, residual ? &*residual : nullptr);
  };
  offer(0);
  for (std::int64_t layer = 0; layer < model_.shape.dense_layers; ++layer) {
    dense_ = model_.dense(layer, hidden, residual ? &*residual : nullptr);
    hidden = std::as_const(dense_.hidden).view<std::uint16_t, 2>();
    residual = std::as_const(dense_.residual).view<std::uint16_t, 2>();
    offer(layer + 1);
  }
  const std::int64_t rows = hidden.dim(0);
  const HiddenRows first = first_rows(ars_[0], rows);
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t i = 0; i < hidden.dim(1); ++i) first(row, i) = hidden(row, i);
  return residual.value_or(first_rows(no_residual_, rows));
}

ConstHiddenRows DecodeRunner::run_sparse_layer(std::int64_t sparse_layer,
                                               const ConstHiddenRows& res) {
  const std::int64_t rows = res.dim(0);
  const HiddenRows h_mid = first_rows(h_mids_[buffer_written_by(sparse_layer)], rows);
  model_.sparse(model_.shape.dense_layers + sparse_layer, step_,
                {.ar = first_rows(ars_[buffer_read_by(sparse_layer)], rows),
                 .res = res,
                 .ar_out = first_rows(ars_[buffer_written_by(sparse_layer)], rows),
                 .h_mid = h_mid});
  return h_mid;
}

Tensor DecodeRunner::run_final_norm(const ConstHiddenRows& res) {
  const std::int64_t sparse_layers = model_.shape.layers - model_.shape.dense_layers;
  Tensor hidden = rows_tensor(res.dim(0), res.dim(1));
  final_norm({first_rows(ars_[buffer_read_by(sparse_layers)], res.dim(0)), res,
              vector_view(model_.final_gamma), model_.shape.rms_eps},
             {hidden.view<std::uint16_t, 2>()});
  step_ = next_step(step_);
  return hidden;
}

StepOutput DecodeRunner::forward(const StepRequest& request, const ConstHiddenRows& embeddings) {
  if (const auto refused = admit_step(request, model_.shape, rules_))
    throw Refusal(refused->message);
  require_dims("step: embeddings", embeddings, {request.tokens, model_.shape.hidden});
  AuxiliaryStates auxiliary(model_.auxiliary_layers, model_.shape.layers);
  ConstHiddenRows res = start(embeddings, auxiliary);
  const std::int64_t sparse_layers = model_.shape.layers - model_.shape.dense_layers;
  for (std::int64_t i = 0; i < sparse_layers; ++i) {
    res = run_sparse_layer(i, res);
    auxiliary.offer(model_.shape.dense_layers + i + 1,
                    first_rows(ars_[buffer_written_by(i)], res.dim(0)), &res);
  }
  Tensor hidden = run_final_norm(res);
  return {std::move(hidden), auxiliary.take()};
}

}  // namespace monoref
