#include "device/backends/gfx/inspect.hpp"

#include <fmt/format.h>

#include <map>
#include <stdexcept>

namespace monoref::device::gfx {

std::unique_ptr<CodeObject> open_object(const std::filesystem::path& file) {
  auto object = std::make_unique<CodeObject>(file);
  if (object->chip != "gfx942" && object->chip != "gfx950")
    throw Unsupported{
        fmt::format("{}: is for '{}', must be for gfx942 or gfx950", file.string(), object->chip)};
  if (object->version < 4 || object->version > 6)
    throw Unsupported{fmt::format("{}: is a code object of version {}, must be 4 to 6",
                                  file.string(), object->version)};
  if (object->kernels.empty()) throw Unsupported{fmt::format("{}: has no kernels", file.string())};
  return object;
}

Description describe(const std::filesystem::path& file) {
  try {
    const auto object = open_object(file);
    Description description{object->chip, object->version, object->kernels, {}};
    std::map<std::string, Opcode> opcodes;
    for (const Mnemonic& mnemonic : mnemonics(object->program())) {
      Opcode& opcode = opcodes[mnemonic.name];
      opcode.name = mnemonic.name;
      ++opcode.count;
      if (!mnemonic.known) ++opcode.unknown;
    }
    for (auto& [name, opcode] : opcodes) description.opcodes.push_back(std::move(opcode));
    return description;
  } catch (const Unsupported& unsupported) {
    throw std::invalid_argument(unsupported.message);
  }
}

}  // namespace monoref::device::gfx
