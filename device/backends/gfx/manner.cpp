#include "device/backends/gfx/manner.hpp"

#include <fmt/format.h>

#include <array>

namespace monoref::device::gfx {
namespace {

struct Named {
  MatrixModel model;
  std::string_view name;
};
constexpr std::array kModels{Named{MatrixModel::kExact, "exact"},
                             Named{MatrixModel::kPortable, "portable"},
                             Named{MatrixModel::kCdna3Microsoft, "cdna3-mmasim-microsoft"},
                             Named{MatrixModel::kCdna3Peichenxie, "cdna3-mmasim-peichenxie"}};

}  // namespace

std::string_view name_of(MatrixModel model) {
  for (const Named& named : kModels)
    if (named.model == model) return named.name;
  return {};
}

std::optional<MatrixModel> matrix_model(std::string_view name) {
  for (const Named& named : kModels)
    if (named.name == name) return named.model;
  return std::nullopt;
}

std::string matrix_model_names() {
  std::string names;
  for (const Named& named : kModels) names += (names.empty() ? "" : ", ") + std::string(named.name);
  return names;
}

std::string matrix_note(std::string_view chip, MatrixModel model) {
  if (chip != "gfx942")
    return fmt::format(
        "provisional: matrix instructions add by the model {}, and how {} adds is "
        "not public",
        name_of(model), chip);
  if (model == MatrixModel::kExact || model == MatrixModel::kPortable)
    return fmt::format("provisional: matrix instructions add by the model {}, which is not {}'s",
                       name_of(model), chip);
  return fmt::format("matrix instructions add by {}, a public model of {}", name_of(model), chip);
}

}  // namespace monoref::device::gfx
