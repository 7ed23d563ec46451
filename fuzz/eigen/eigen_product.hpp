// Eigen's single-precision product, the yardstick for the fast form of qkv_projection: built once
// for each instruction set, each build in a namespace of its own.
#pragma once

#include <cstddef>

namespace monoref {

/// c [tokens, rows] = a [tokens, hidden] * b [hidden, rows], all column by column, on one thread.
using EigenProduct = void (*)(const float* a, const float* b, float* c, std::ptrdiff_t tokens,
                              std::ptrdiff_t hidden, std::ptrdiff_t rows);

void eigen_product_baseline(const float* a, const float* b, float* c, std::ptrdiff_t tokens,
                            std::ptrdiff_t hidden, std::ptrdiff_t rows);
void eigen_product_v3(const float* a, const float* b, float* c, std::ptrdiff_t tokens,
                      std::ptrdiff_t hidden, std::ptrdiff_t rows);
void eigen_product_v4(const float* a, const float* b, float* c, std::ptrdiff_t tokens,
                      std::ptrdiff_t hidden, std::ptrdiff_t rows);

}  // namespace monoref
