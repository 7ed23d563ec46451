#include "reference/fast/isa.hpp"

#include <array>

namespace monoref {
namespace {

constexpr std::array<Isa, 3> kLevels{Isa::kBaseline, Isa::kV3, Isa::kV4};

std::size_t count_levels() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("x86-64-v4")) return 3;
  if (__builtin_cpu_supports("x86-64-v3")) return 2;
#endif
  return 1;
}

}  // namespace

std::span<const Isa> available_isas() {
  static const std::size_t count = count_levels();
  return std::span(kLevels).first(count);
}

Isa best_isa() {
  return available_isas().back();
}

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::kV3:
      return "x86-64-v3";
    case Isa::kV4:
      return "x86-64-v4";
    default:
      return "baseline";
  }
}

}  // namespace monoref
