// One decode step of the mono runner: what happens around and between the layers. The layers come
// as functions, so that a step can be run with the real chain, with stand-ins, or on a device.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "reference/core/tensor.hpp"
#include "reference/model/build_admission.hpp"
#include "reference/model/shapes.hpp"
#include "reference/model/step_admission.hpp"

namespace monoref {

/// Rows [n, hidden] of BF16.
using HiddenRows = View<std::uint16_t, 2>;
using ConstHiddenRows = View<const std::uint16_t, 2>;

/// Sparse layer i reads the buffer of its parity and writes the other one (mono-decode section 2).
constexpr std::size_t buffer_read_by(std::int64_t sparse_layer) {
  return static_cast<std::size_t>(sparse_layer % 2);
}
constexpr std::size_t buffer_written_by(std::int64_t sparse_layer) {
  return static_cast<std::size_t>((sparse_layer + 1) % 2);
}

/// The counter of the step after this one: 2^31 - 1 is followed by -2^31, as on the device.
constexpr std::int32_t next_step(std::int32_t step) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(step) + 1u);
}

/// What one sparse layer reads and writes. Input and output rows never share a buffer.
struct SparseLayerRows {
  ConstHiddenRows ar;   ///< the reduced output of the layer before
  ConstHiddenRows res;  ///< the residual beside it
  HiddenRows ar_out;    ///< the reduced output of this layer
  HiddenRows h_mid;     ///< the residual it returns
};

/// Runs sparse MoE layer `layer_id`, counted over all layers of the model, in step `step`.
using SparseLayer =
    std::function<void(std::int64_t layer_id, std::int32_t step, const SparseLayerRows& rows)>;

/// What a dense layer returns; both [n, hidden] BF16, dense.
struct DenseLayerRows {
  Tensor hidden;
  Tensor residual;
};

/// Runs dense layer `layer`. Before layer 0 there is no residual, and the pointer is null.
using DenseLayer = std::function<DenseLayerRows(std::int64_t layer, const ConstHiddenRows& hidden,
                                                const ConstHiddenRows* residual)>;

/// A dense layer without attention and MLP, for steps that are about the sparse ones: the residual
/// becomes the sum of both (hidden alone where there is none), hidden the norm of that sum in the
/// manner of final_norm. Refuses what those two refuse.
DenseLayerRows dense_stand_in(const ConstHiddenRows& hidden, const ConstHiddenRows* residual,
                              const View<const std::uint16_t, 1>& gamma, double eps);

/// Collects the auxiliary hidden states that a model asks for (mono-decode sections 2 and 10).
class AuxiliaryStates {
 public:
  /// Indices asked for: 0 before layer 0, i + 1 after layer i. Refuses one outside 0 to `layers`.
  AuxiliaryStates(std::span<const std::int64_t> indices, std::int64_t layers);

  /// Appends hidden + residual, one BF16 addition, or hidden alone where there is no residual, if
  /// `index` was asked for. States stand in the order of the layers, however they were asked for.
  void offer(std::int64_t index, const ConstHiddenRows& hidden, const ConstHiddenRows* residual);

  std::vector<Tensor> take() { return std::move(states_); }

 private:
  std::set<std::int64_t> wanted_;
  std::vector<Tensor> states_;  ///< [n, hidden] BF16 each
};

/// Base addresses of the KV cache and the index cache of the first MoE layer.
struct CacheAddresses {
  std::uint64_t kv = 0;
  std::uint64_t index = 0;
  bool operator==(const CacheAddresses&) const = default;
};

/// The parts of a model that a step runs.
struct StepModel {
  ModelShape shape{};  ///< layers, dense_layers, hidden, max_tokens, rms_eps
  DenseLayer dense;    ///< not called if there are no dense layers
  SparseLayer sparse;
  std::vector<std::uint16_t> final_gamma;        ///< [hidden] BF16
  std::vector<std::int64_t> auxiliary_layers{};  ///< indices of AuxiliaryStates; none: no list
};

struct StepOutput {
  Tensor hidden;                  ///< [n, hidden] BF16
  std::vector<Tensor> auxiliary;  ///< empty unless the model asks for states
};

/// Owns the buffers that steps share, and their counter. Every step must give what it would give
/// with fresh buffers, whatever the steps before it left behind (bug cases D03 and D04).
class DecodeRunner {
 public:
  /// Refuses the first reason of `admit_build`; dense layers of another number than the shape says;
  /// a gamma of another length; a shape that final_norm cannot take; and auxiliary indices outside
  /// 0 to layers. `caches` are what the build looks at.
  DecodeRunner(StepModel model, const BuildRequest& build, CacheAddresses caches,
               AdmissionRules rules = AdmissionRules::kTarget);

  /// Whether the runner must be built anew: the caches lie elsewhere now (bug case D03).
  bool stale(const CacheAddresses& now) const { return now != caches_; }

  /// Steps done so far; the tag of their mailboxes.
  std::int32_t step() const { return step_; }
  void set_step(std::int32_t step) { step_ = step; }

  /// One step of `request.tokens` rows, embedded as `embeddings` [n, hidden]:
  ///
  ///   the dense layers; then ar buffer 0 = hidden, and the residual is theirs, or zeros if there
  ///   are none; sparse layer i from buffer i mod 2 to the other one, its residual likewise; then
  ///   hidden = final_norm(ar buffer of the last layer, its residual), and the counter goes up.
  ///   Auxiliary states: index 0 before layer 0, i + 1 after layer i.
  ///
  /// Refuses the first reason of `admit_step`, and embeddings of other dims, before anything
  /// changes.
  StepOutput forward(const StepRequest& request, const ConstHiddenRows& embeddings);

 private:
  ConstHiddenRows start(const ConstHiddenRows& embeddings, AuxiliaryStates& auxiliary);
  ConstHiddenRows run_sparse_layer(std::int64_t sparse_layer, const ConstHiddenRows& res);
  Tensor run_final_norm(const ConstHiddenRows& res);
  HiddenRows first_rows(Tensor& buffer, std::int64_t rows) const;

  StepModel model_;
  AdmissionRules rules_;
  CacheAddresses caches_;
  std::array<Tensor, 2> ars_;     ///< [max_tokens, hidden] BF16, by parity
  std::array<Tensor, 2> h_mids_;  ///< likewise
  Tensor no_residual_;            ///< [max_tokens, hidden] BF16 zeros
  DenseLayerRows dense_;          ///< what the dense layers of the step returned
  std::int32_t step_ = 0;
};

}  // namespace monoref
