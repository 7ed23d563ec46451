// Compiled several times: MONOREF_EIGEN_PRODUCT names the function, and `Eigen` itself is renamed,
// so that the linker does not merge code for one instruction set into another's.
#include "fuzz/eigen/eigen_product.hpp"

#include <Eigen/Core>

namespace monoref {

void MONOREF_EIGEN_PRODUCT(const float* a, const float* b, float* c, std::ptrdiff_t tokens,
                           std::ptrdiff_t hidden, std::ptrdiff_t rows) {
  const Eigen::Map<const Eigen::MatrixXf> left(a, tokens, hidden);
  const Eigen::Map<const Eigen::MatrixXf> right(b, hidden, rows);
  Eigen::Map<Eigen::MatrixXf>(c, tokens, rows).noalias() = left * right;
}

}  // namespace monoref
