// The inner loop of the fast matrix products: many sequential fma chains side by side.
#pragma once

#include <cstddef>

#include "reference/fast/isa.hpp"

namespace monoref {

inline constexpr std::size_t kPanelLanes = 16;   ///< chains side by side in vector lanes
inline constexpr std::size_t kPanelColumns = 8;  ///< chains side by side in registers

/// acc[c][lane] = fma(x[k][c], panel[k][lane], acc[c][lane]) for ascending k, where `panel` is
/// [depth][kPanelLanes], `x` is [depth][kPanelColumns] and `acc` is [kPanelColumns][kPanelLanes]:
/// 128 chains of `fma_chain`, each in its own order, bit for bit. `acc` must not overlap the
/// others.
using PanelProduct = void (*)(const float* panel, const float* x, std::size_t depth, float* acc);

/// The form for an instruction set, one of `available_isas`.
PanelProduct panel_product_for(Isa isa = best_isa());

}  // namespace monoref
