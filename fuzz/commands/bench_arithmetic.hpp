// What `monoref bench` times below the stages: conversions, dots, and the projection's fast form
// beside Eigen's product.
#pragma once

namespace monoref {

/// Registers the benchmarks with Google Benchmark.
void register_arithmetic_benchmarks();

}  // namespace monoref
