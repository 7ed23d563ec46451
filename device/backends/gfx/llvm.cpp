#include "device/backends/gfx/llvm.hpp"

#include <llvm/MC/MCAsmInfo.h>
#include <llvm/MC/MCContext.h>
#include <llvm/MC/MCDisassembler/MCDisassembler.h>
#include <llvm/MC/MCInst.h>
#include <llvm/MC/MCInstPrinter.h>
#include <llvm/MC/MCInstrInfo.h>
#include <llvm/MC/MCRegisterInfo.h>
#include <llvm/MC/MCSubtargetInfo.h>
#include <llvm/MC/MCTargetOptions.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Support/raw_ostream.h>

#include <cstring>

#include "device/backends/gfx/wave.hpp"

// LLVM declares these in a header of all targets that it was built with.
extern "C" void LLVMInitializeAMDGPUTargetInfo();
extern "C" void LLVMInitializeAMDGPUTargetMC();
extern "C" void LLVMInitializeAMDGPUDisassembler();

namespace monoref::device::gfx {

struct Disassembler::Parts {
  llvm::Triple triple{"amdgcn-amd-amdhsa"};
  llvm::MCTargetOptions options;
  std::unique_ptr<llvm::MCRegisterInfo> registers;
  std::unique_ptr<llvm::MCAsmInfo> assembly;
  std::unique_ptr<llvm::MCInstrInfo> instructions;
  std::unique_ptr<llvm::MCSubtargetInfo> chip;
  std::unique_ptr<llvm::MCContext> context;
  std::unique_ptr<llvm::MCDisassembler> disassembler;
  std::unique_ptr<llvm::MCInstPrinter> printer;
};

namespace {

const llvm::Target& amd_target(const llvm::Triple& triple) {
  static const bool kInitialised = [] {
    LLVMInitializeAMDGPUTargetInfo();
    LLVMInitializeAMDGPUTargetMC();
    LLVMInitializeAMDGPUDisassembler();
    return true;
  }();
  static_cast<void>(kInitialised);
  std::string error;
  const llvm::Target* const target = llvm::TargetRegistry::lookupTarget(triple, error);
  if (target == nullptr) throw Unsupported{"LLVM has no AMD GPU: " + error};
  return *target;
}

/// The text with single spaces, and none around it.
std::string tidy(std::string_view text) {
  std::string result;
  for (const char c : text) {
    const bool space = c == ' ' || c == '\t' || c == '\n';
    if (!space)
      result += c;
    else if (!result.empty() && result.back() != ' ')
      result += ' ';
  }
  if (!result.empty() && result.back() == ' ') result.pop_back();
  return result;
}

}  // namespace

Disassembler::Disassembler(std::string_view chip) : parts_(std::make_unique<Parts>()) {
  Parts& p = *parts_;
  const llvm::Target& target = amd_target(p.triple);
  p.registers.reset(target.createMCRegInfo(p.triple));
  p.assembly.reset(target.createMCAsmInfo(*p.registers, p.triple, p.options));
  p.instructions.reset(target.createMCInstrInfo());
  p.chip.reset(
      target.createMCSubtargetInfo(p.triple, llvm::StringRef(chip.data(), chip.size()), ""));
  p.context = std::make_unique<llvm::MCContext>(p.triple, p.assembly.get(), p.registers.get(),
                                                p.chip.get());
  p.disassembler.reset(target.createMCDisassembler(*p.chip, *p.context));
  p.printer.reset(
      target.createMCInstPrinter(p.triple, 0, *p.assembly, *p.instructions, *p.registers));
}

Disassembler::~Disassembler() = default;

Disassembler::Line Disassembler::at(std::span<const std::byte> code, std::uint64_t address) {
  const llvm::ArrayRef<std::uint8_t> bytes(reinterpret_cast<const std::uint8_t*>(code.data()),
                                           code.size());
  llvm::MCInst instruction;
  std::uint64_t size = 0;
  Line line;
  if (parts_->disassembler->getInstruction(instruction, size, bytes, address, llvm::nulls()) !=
      llvm::MCDisassembler::Success) {
    line.bytes = std::min<std::size_t>(4, code.size());
    std::uint32_t word = 0;
    std::memcpy(&word, code.data(), line.bytes);
    line.text = ".long " + std::to_string(word);
    return line;
  }
  std::string text;
  llvm::raw_string_ostream stream(text);
  parts_->printer->printInst(&instruction, address, "", *parts_->chip, stream);
  line.bytes = static_cast<std::size_t>(size);
  line.text = tidy(text);
  return line;
}

}  // namespace monoref::device::gfx
