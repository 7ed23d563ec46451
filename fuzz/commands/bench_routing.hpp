// What `monoref bench` times between attention and experts: reduction, router, selection.
#pragma once

namespace monoref {

/// Registers the benchmarks with Google Benchmark.
void register_routing_benchmarks();

}  // namespace monoref
