// What `monoref bench` times from the index scores to the attention, at the sizes of the model.
#pragma once

namespace monoref {

/// Registers the benchmarks with Google Benchmark.
void register_attention_benchmarks();

}  // namespace monoref
