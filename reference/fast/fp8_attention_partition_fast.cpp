// The fast form of the attention over a partition. For the scores, lanes are 16 keys of a page; for
// the products with V, lanes are 16 dims. Heads stay in registers, eight at a time.
#include <algorithm>
#include <vector>

#include "reference/arithmetic/minmax.hpp"
#include "reference/arithmetic/portable.hpp"
#include "reference/fast/panel_product.hpp"
#include "reference/formats/convert.hpp"
#include "reference/rules/attention_tile.hpp"
#include "reference/rules/stage_checks.hpp"
#include "reference/stages/fp8_attention_partition.hpp"

namespace monoref {
namespace {

constexpr std::size_t kKeys = kPartitionKeys;
constexpr std::size_t kGroup = kPanelLanes;  ///< keys that share a 16-byte unit of V
constexpr std::string_view kStage = "fp8_attention_partition";

/// One kv head of one row, its query heads padded with zeros to whole tiles of columns.
class HeadGroup {
 public:
  HeadGroup(const Fp8AttentionPartitionInput& input, const KvPageShape& shape, std::int64_t row,
            std::int64_t kv_head, Isa isa)
      : input_(input),
        shape_(shape),
        row_(row),
        kv_head_(kv_head),
        isa_(isa),
        product_(panel_product_for(isa)),
        table_(decode_table(float_format(fp8_dtype(input.contract))).data()),
        rules_(input.contract, input.sm_scale, k_scale_of(input.caches, kv_head),
               v_scale_of(input.caches, kv_head)),
        heads_(static_cast<std::size_t>(input.q.dim(1) / shape.kv_heads)),
        tiles_((heads_ + kPanelColumns - 1) / kPanelColumns),
        dim_(static_cast<std::size_t>(shape.head_dim)),
        q_(tiles_ * dim_ * kPanelColumns, 0.0f),
        panel_(std::max(dim_ * kGroup, dim_ * kWaveKeys)),
        scores_(heads_ * kKeys),
        p_(heads_ * kKeys),
        rounded_(tiles_ * kKeys * kPanelColumns),
        acc_(tiles_ * kPanelColumns * dim_) {
    for (std::size_t head = 0; head < heads_; ++head)
      for (std::size_t d = 0; d < dim_; ++d)
        q_[(head / kPanelColumns * dim_ + d) * kPanelColumns + head % kPanelColumns] =
            rules_.query(float_from_bf16(input.q(row, first_head() + head, d)));
  }

  void run(const Fp8AttentionPartitionOutput& output, std::int64_t partition) {
    find_groups(partition);
    std::fill(scores_.begin(), scores_.end(), rules_.masked);
    for (std::size_t group = 0; group < kKeys / kGroup; ++group)
      if (valid_[group] > 0) score_group(group);
    for (std::size_t head = 0; head < heads_; ++head) softmax(output, partition, head);
    for (std::size_t wave = 0; wave < kKeys / kWaveKeys; ++wave) add_wave(wave);
    store(output, partition);
  }

 private:
  std::size_t first_head() const { return static_cast<std::size_t>(kv_head_) * heads_; }
  bool keeps_v() const { return input_.contract.v_past_context == VPastContext::kKept; }

  /// Where each group of 16 keys of the partition lies, and how many of them are valid.
  void find_groups(std::int64_t partition) {
    for (std::size_t group = 0; group < kKeys / kGroup; ++group) {
      const std::int64_t key =
          partition * kPartitionKeys + static_cast<std::int64_t>(group * kGroup);
      const std::int64_t column = key / shape_.page_size;
      const std::int64_t left = input_.sparse_context_lens(row_, kv_head_) - key;
      valid_[group] = static_cast<std::size_t>(std::clamp<std::int64_t>(left, 0, kGroup));
      exists_[group] = left > 0 || keeps_v();
      const bool in_context =
          column * shape_.page_size < input_.sparse_context_lens(row_, kv_head_);
      const std::int64_t page = in_context ? input_.sparse_block_table(row_, kv_head_, column) : 0;
      if (exists_[group])
        slots_[group] =
            checked_page_slot(input_.caches, shape_, page, {kStage, row_, kv_head_, column}) +
            key % shape_.page_size;
    }
  }

  void score_group(std::size_t group) {
    const std::byte* keys =
        input_.caches.k_cache.base() + k_byte(shape_, {slots_[group], kv_head_, 0});
    const std::int64_t next_unit = shape_.page_size * static_cast<std::int64_t>(kGroup);
    for (std::size_t lane = 0; lane < kGroup; ++lane)
      for (std::size_t d = 0; d < dim_; ++d) {
        const auto unit = static_cast<std::int64_t>(d / kGroup) * next_unit;
        const std::byte code = keys[unit + static_cast<std::int64_t>(lane * kGroup + d % kGroup)];
        panel_[d * kGroup + lane] = table_[std::to_integer<std::uint8_t>(code)];
      }
    for (std::size_t tile = 0; tile < tiles_; ++tile) {
      float dots[kPanelColumns * kPanelLanes] = {};
      product_(panel_.data(), q_.data() + tile * dim_ * kPanelColumns, dim_, dots);
      const std::size_t end = std::min(heads_, (tile + 1) * kPanelColumns);
      for (std::size_t head = tile * kPanelColumns; head < end; ++head)
        for (std::size_t lane = 0; lane < valid_[group]; ++lane)
          scores_[head * kKeys + group * kGroup + lane] =
              canonical(rules_.score_factor * dots[head % kPanelColumns * kPanelLanes + lane]);
    }
  }

  /// One head's maximum, probabilities and their sum; rounded probabilities for the product.
  void softmax(const Fp8AttentionPartitionOutput& output, std::int64_t partition,
               std::size_t head) {
    const std::span<float> s(scores_.data() + head * kKeys, kKeys);
    const std::span<float> p(p_.data() + head * kKeys, kKeys);
    float largest = s[0];
    for (const float score : s) largest = nan_max(largest, score);
    const bool natural = input_.contract.score_units == ScoreUnits::kNatural;
    for (float& score : s) score = natural ? (score - largest) * kLog2E : score - largest;
    portable_exp2(s, p, isa_);
    output.m(row_, partition, first_head() + head) = largest;
    output.l(row_, partition, first_head() + head) = sum_of(p);

    float scaled[kKeys];
    std::uint8_t codes[kKeys];
    for (std::size_t j = 0; j < kKeys; ++j) scaled[j] = p[j] * rules_.p_factor;
    encode_fp8(rules_.fp8.format, scaled, codes, rules_.fp8.overflow, isa_);
    float* column = rounded_.data() + head / kPanelColumns * kKeys * kPanelColumns;
    for (std::size_t j = 0; j < kKeys; ++j)
      column[j * kPanelColumns + head % kPanelColumns] =
          j % kGroup < valid_[j / kGroup] ? table_[codes[j]] : 0.0f;
  }

  /// Lane 0 of each wave's butterfly 8, 4, 2, 1, then the waves in order.
  static float sum_of(std::span<const float> p) {
    float total = 0.0f;
    for (std::size_t wave = 0; wave < kKeys; wave += kWaveKeys) {
      float lanes[kWaveKeys / 2];
      for (std::size_t i = 0; i < kWaveKeys / 2; ++i)
        lanes[i] = (0.0f + p[wave + i]) + p[wave + kWaveKeys / 2 + i];
      for (std::size_t offset = kWaveKeys / 4; offset > 0; offset /= 2)
        for (std::size_t i = 0; i < offset; ++i) lanes[i] += lanes[i + offset];
      total = wave == 0 ? lanes[0] : total + lanes[0];
    }
    return canonical(total);
  }

  /// V of a wave's keys as panels [16 dims at a time][key][kPanelLanes].
  void fill_values(std::size_t wave) {
    std::fill(panel_.begin(), panel_.end(), 0.0f);
    for (std::size_t half = 0; half < kWaveKeys / kGroup; ++half) {
      const std::size_t group = wave * (kWaveKeys / kGroup) + half;
      if (!exists_[group]) continue;
      const std::byte* values = input_.caches.v_cache.base() + shape_.v_view_offset() +
                                v_byte(shape_, {slots_[group], kv_head_, 0});
      const std::size_t keys = keeps_v() ? kGroup : valid_[group];
      for (std::size_t d = 0; d < dim_; ++d) {
        float* to = panel_.data() + (d / kPanelLanes * kWaveKeys + half * kGroup) * kPanelLanes +
                    d % kPanelLanes;
        for (std::size_t lane = 0; lane < keys; ++lane)
          to[lane * kPanelLanes] = table_[std::to_integer<std::uint8_t>(values[d * kGroup + lane])];
      }
    }
  }

  void add_wave(std::size_t wave) {
    fill_values(wave);
    for (std::size_t tile = 0; tile < tiles_; ++tile)
      for (std::size_t d = 0; d < dim_; d += kPanelLanes) {
        float sums[kPanelColumns * kPanelLanes] = {};
        product_(panel_.data() + d * kWaveKeys,
                 rounded_.data() + (tile * kKeys + wave * kWaveKeys) * kPanelColumns, kWaveKeys,
                 sums);
        for (std::size_t i = 0; i < kPanelColumns; ++i)
          for (std::size_t lane = 0; lane < kPanelLanes; ++lane) {
            float& total = acc_[(tile * kPanelColumns + i) * dim_ + d + lane];
            const float sum = sums[i * kPanelLanes + lane];
            total = wave == 0 ? sum : total + sum;
          }
      }
  }

  void store(const Fp8AttentionPartitionOutput& output, std::int64_t partition) {
    for (std::size_t head = 0; head < heads_; ++head) {
      HeadState state(0);
      state.l = output.l(row_, partition, first_head() + head);
      state.acc.assign(acc_.begin() + static_cast<std::ptrdiff_t>(head * dim_),
                       acc_.begin() + static_cast<std::ptrdiff_t>((head + 1) * dim_));
      if (input_.contract.v_scale == VScale::kPerTile)
        for (float& sum : state.acc) sum = rules_.v_scale * sum;
      const std::vector<float> o = finished(rules_, state);
      for (std::size_t d = 0; d < dim_; ++d)
        output.o(row_, partition, first_head() + head, d) = bf16_from_float(o[d]);
    }
  }

  const Fp8AttentionPartitionInput& input_;
  const KvPageShape& shape_;
  std::int64_t row_;
  std::int64_t kv_head_;
  Isa isa_;
  PanelProduct product_;
  const float* table_;
  AttentionRules rules_;
  std::size_t heads_;
  std::size_t tiles_;
  std::size_t dim_;
  std::vector<float> q_;        ///< [tile][dim][kPanelColumns]
  std::vector<float> panel_;    ///< [dim][16 keys], or [dims / 16][32 keys][16 dims]
  std::vector<float> scores_;   ///< [head][key]
  std::vector<float> p_;        ///< [head][key]
  std::vector<float> rounded_;  ///< [tile][key][kPanelColumns]
  std::vector<float> acc_;      ///< [head, padded][dim]
  std::array<std::size_t, kKeys / kGroup> valid_{};
  std::array<bool, kKeys / kGroup> exists_{};
  std::array<std::int64_t, kKeys / kGroup> slots_{};
};

}  // namespace

void fp8_attention_partition_fast(const Fp8AttentionPartitionInput& input,
                                  const Fp8AttentionPartitionOutput& output, Isa isa) {
  const Fp8AttentionPartitionShape dims = fp8_attention_partition_shape(input);
  require_dims("fp8_attention_partition: output o", output.o, dims.o);
  require_dims("fp8_attention_partition: output m", output.m, dims.m);
  require_dims("fp8_attention_partition: output l", output.l, dims.m);
  const KvPageShape shape =
      attention_cache_shape(kStage, input.caches, input.q.dim(2), input.contract);
  for (std::int64_t row = 0; row < dims.o[0]; ++row)
    for (std::int64_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
      HeadGroup group(input, shape, row, kv_head, isa);
      for (std::int64_t partition = 0; partition < dims.o[1]; ++partition)
        group.run(output, partition);
    }
}

}  // namespace monoref
