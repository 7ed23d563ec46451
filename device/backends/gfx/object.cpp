#include "device/backends/gfx/object.hpp"

#include <fmt/format.h>
#include <llvm/BinaryFormat/MsgPackDocument.h>
#include <llvm/Object/ELFObjectFile.h>
#include <llvm/Support/AMDHSAKernelDescriptor.h>
#include <llvm/Support/MemoryBuffer.h>

#include <algorithm>
#include <cstring>

namespace monoref::device::gfx {
namespace {

using File = llvm::object::ELF64LEFile;

[[noreturn]] void bad(const std::filesystem::path& file, const std::string& what) {
  throw Unsupported{fmt::format("{}: {}", file.string(), what)};
}

/// What LLVM gives, or its complaint.
template <class T>
T need(const std::filesystem::path& file, llvm::Expected<T> value) {
  if (!value) bad(file, llvm::toString(value.takeError()));
  return std::move(*value);
}

/// A map's entry; null where there is none.
const llvm::msgpack::DocNode* entry_of(const llvm::msgpack::DocNode& node, std::string_view key) {
  if (!node.isMap()) return nullptr;
  auto& map = const_cast<llvm::msgpack::DocNode&>(node).getMap();  // LLVM reads maps by iterators
  const auto found = map.find(llvm::StringRef(key.data(), key.size()));
  return found == map.end() ? nullptr : &found->second;
}
std::string text_of(const llvm::msgpack::DocNode& node, std::string_view key) {
  const auto* const entry = entry_of(node, key);
  if (entry == nullptr || entry->getKind() != llvm::msgpack::Type::String) return {};
  return const_cast<llvm::msgpack::DocNode*>(entry)->getString().str();
}
std::uint32_t number_of(const llvm::msgpack::DocNode& node, std::string_view key) {
  const auto* const entry = entry_of(node, key);
  if (entry == nullptr) return 0;
  auto& value = *const_cast<llvm::msgpack::DocNode*>(entry);
  if (value.getKind() == llvm::msgpack::Type::UInt)
    return static_cast<std::uint32_t>(value.getUInt());
  if (value.getKind() == llvm::msgpack::Type::Int)
    return static_cast<std::uint32_t>(value.getInt());
  return 0;
}

/// What a kernel's descriptor says.
void read_descriptor(Kernel& kernel, std::uint64_t at, const std::byte* bytes) {
  namespace hsa = llvm::amdhsa;
  hsa::kernel_descriptor_t d{};
  std::memcpy(&d, bytes, sizeof d);
  const auto bits = [](std::uint32_t word, unsigned shift, unsigned width) {
    return word >> shift & ((1U << width) - 1);
  };
  const std::uint32_t first = d.compute_pgm_rsrc1;
  const std::uint32_t second = d.compute_pgm_rsrc2;
  const std::uint32_t properties = d.kernel_code_properties;
  kernel.entry = at + static_cast<std::uint64_t>(d.kernel_code_entry_byte_offset);
  kernel.shared_bytes = d.group_segment_fixed_size;
  kernel.private_bytes = d.private_segment_fixed_size;
  kernel.argument_bytes = d.kernarg_size;
  kernel.mode.round32 =
      static_cast<std::uint8_t>(bits(first, hsa::COMPUTE_PGM_RSRC1_FLOAT_ROUND_MODE_32_SHIFT, 2));
  kernel.mode.round64 = static_cast<std::uint8_t>(
      bits(first, hsa::COMPUTE_PGM_RSRC1_FLOAT_ROUND_MODE_16_64_SHIFT, 2));
  // The descriptor's words: 0 flushes both, 1 keeps sources, 2 keeps results, 3 keeps both.
  kernel.mode.denorm32 =
      static_cast<std::uint8_t>(bits(first, hsa::COMPUTE_PGM_RSRC1_FLOAT_DENORM_MODE_32_SHIFT, 2));
  kernel.mode.denorm64 = static_cast<std::uint8_t>(
      bits(first, hsa::COMPUTE_PGM_RSRC1_FLOAT_DENORM_MODE_16_64_SHIFT, 2));
  kernel.mode.dx10_clamp =
      bits(first, hsa::COMPUTE_PGM_RSRC1_GFX6_GFX11_ENABLE_DX10_CLAMP_SHIFT, 1) != 0;
  kernel.mode.ieee = bits(first, hsa::COMPUTE_PGM_RSRC1_GFX6_GFX11_ENABLE_IEEE_MODE_SHIFT, 1) != 0;
  kernel.mode.fp16_overflow = bits(first, hsa::COMPUTE_PGM_RSRC1_GFX9_PLUS_FP16_OVFL_SHIFT, 1) != 0;
  kernel.group_x = bits(second, hsa::COMPUTE_PGM_RSRC2_ENABLE_SGPR_WORKGROUP_ID_X_SHIFT, 1) != 0;
  kernel.group_y = bits(second, hsa::COMPUTE_PGM_RSRC2_ENABLE_SGPR_WORKGROUP_ID_Y_SHIFT, 1) != 0;
  kernel.group_z = bits(second, hsa::COMPUTE_PGM_RSRC2_ENABLE_SGPR_WORKGROUP_ID_Z_SHIFT, 1) != 0;
  kernel.group_info = bits(second, hsa::COMPUTE_PGM_RSRC2_ENABLE_SGPR_WORKGROUP_INFO_SHIFT, 1) != 0;
  kernel.item_ids = bits(second, hsa::COMPUTE_PGM_RSRC2_ENABLE_VGPR_WORKITEM_ID_SHIFT, 2);
  kernel.private_buffer =
      (properties & hsa::KERNEL_CODE_PROPERTY_ENABLE_SGPR_PRIVATE_SEGMENT_BUFFER) != 0;
  kernel.dispatch_pointer = (properties & hsa::KERNEL_CODE_PROPERTY_ENABLE_SGPR_DISPATCH_PTR) != 0;
  kernel.queue_pointer = (properties & hsa::KERNEL_CODE_PROPERTY_ENABLE_SGPR_QUEUE_PTR) != 0;
  kernel.argument_pointer =
      (properties & hsa::KERNEL_CODE_PROPERTY_ENABLE_SGPR_KERNARG_SEGMENT_PTR) != 0;
  kernel.dispatch_id = (properties & hsa::KERNEL_CODE_PROPERTY_ENABLE_SGPR_DISPATCH_ID) != 0;
  kernel.flat_scratch = (properties & hsa::KERNEL_CODE_PROPERTY_ENABLE_SGPR_FLAT_SCRATCH_INIT) != 0;
  kernel.private_size =
      (properties & hsa::KERNEL_CODE_PROPERTY_ENABLE_SGPR_PRIVATE_SEGMENT_SIZE) != 0;
  kernel.dynamic_stack = (properties & hsa::KERNEL_CODE_PROPERTY_USES_DYNAMIC_STACK) != 0;
  kernel.preloaded_words = bits(d.kernarg_preload, hsa::KERNARG_PRELOAD_SPEC_LENGTH_SHIFT, 7);
  kernel.preload_offset = bits(d.kernarg_preload, hsa::KERNARG_PRELOAD_SPEC_OFFSET_SHIFT, 9);
}

Kernel kernel_of(const llvm::msgpack::DocNode& node) {
  Kernel kernel;
  kernel.name = text_of(node, ".name");
  kernel.vector_registers = number_of(node, ".vgpr_count");
  kernel.accumulators = number_of(node, ".agpr_count");
  kernel.scalar_registers = number_of(node, ".sgpr_count");
  kernel.max_threads = number_of(node, ".max_flat_workgroup_size");
  if (const auto* const list = entry_of(node, ".args"); list != nullptr && list->isArray())
    for (auto& argument : const_cast<llvm::msgpack::DocNode*>(list)->getArray())
      kernel.parameters.push_back({text_of(argument, ".value_kind"), text_of(argument, ".name"),
                                   number_of(argument, ".offset"), number_of(argument, ".size")});
  return kernel;
}

/// What no compiler makes is not executed, and takes no memory.
void check_sizes(const std::filesystem::path& file, const Kernel& kernel) {
  constexpr std::uint32_t kMostArgumentBytes = 1U << 16;
  constexpr std::uint32_t kMostPrivateBytes = 1U << 17;
  constexpr std::uint32_t kMostPreloaded = 16;
  const auto check = [&](const char* what, std::uint64_t value, std::uint64_t most) {
    if (value > most)
      bad(file, fmt::format("kernel {}: {} is {}, limit {}", kernel.name, what, value, most));
  };
  check("the size of its arguments", kernel.argument_bytes, kMostArgumentBytes);
  check("the scratch of a lane", kernel.private_bytes, kMostPrivateBytes);
  check("the number of preloaded words", kernel.preloaded_words, kMostPreloaded);
  check("the end of the preloaded words",
        4 * (std::uint64_t{kernel.preload_offset} + kernel.preloaded_words),
        std::uint64_t{kernel.argument_bytes} + 3);
  for (const KernelParameter& parameter : kernel.parameters)
    check("the end of an argument", std::uint64_t{parameter.offset} + parameter.size,
          kernel.argument_bytes);
}

/// The metadata note's bytes.
std::string metadata_note(const std::filesystem::path& file, const File& elf) {
  constexpr unsigned kMetadata = 32;
  for (const auto& section : need(file, elf.sections())) {
    if (section.sh_type != llvm::ELF::SHT_NOTE) continue;
    llvm::Error error = llvm::Error::success();
    std::string found;
    for (const auto& note : elf.notes(section, error))
      if (note.getType() == kMetadata)
        found = llvm::toStringRef(note.getDesc(section.sh_addralign)).str();
    if (error) bad(file, llvm::toString(std::move(error)));
    if (!found.empty()) return found;
  }
  bad(file, "has no AMDGPU metadata note");
}

}  // namespace

CodeObject::CodeObject(const std::filesystem::path& file) : file_(file) {
  auto buffer = llvm::MemoryBuffer::getFile(file.string());
  if (!buffer) bad(file, buffer.getError().message());
  const llvm::StringRef bytes = (*buffer)->getBuffer();
  const File elf = need(file, File::create(bytes));
  if (elf.getHeader().e_machine != llvm::ELF::EM_AMDGPU) bad(file, "is no AMD GPU code object");
  // The ABI counts from 0, code objects from 2.
  version = elf.getHeader().e_ident[llvm::ELF::EI_ABIVERSION] + 2;
  constexpr std::uint64_t kMostBytes = std::uint64_t{256} << 20;
  for (const auto& segment : need(file, elf.program_headers())) {
    if (segment.p_type != llvm::ELF::PT_LOAD) continue;
    const std::uint64_t end = segment.p_vaddr + segment.p_memsz;
    if (segment.p_vaddr > kMostBytes || segment.p_memsz > kMostBytes || end > kMostBytes ||
        segment.p_filesz > segment.p_memsz || segment.p_offset > bytes.size() ||
        segment.p_filesz > bytes.size() - segment.p_offset)
      bad(file, "a segment does not fit the file");
    image_.resize(std::max<std::size_t>(image_.size(), (end + sizeof(Page) - 1) / sizeof(Page)));
    std::memcpy(image() + segment.p_vaddr, bytes.data() + segment.p_offset, segment.p_filesz);
  }
  for (const auto& section : need(file, elf.sections()))
    if (need(file, elf.getSectionName(section)) == ".text") {
      text_ = section.sh_addr;
      text_bytes_ = section.sh_size;
    }
  if (text_bytes_ == 0 || text_ > size() || text_bytes_ > size() - text_)
    bad(file, "has no text section");

  llvm::msgpack::Document document;
  const std::string note = metadata_note(file, elf);
  if (!document.readFromBlob(note, false)) bad(file, "its metadata note cannot be read");
  const std::string target = text_of(document.getRoot(), "amdhsa.target");
  const std::size_t dash = target.rfind('-');
  chip = target.substr(dash == target.npos ? 0 : dash + 1);
  chip = chip.substr(0, chip.find(':'));
  const auto* const list = entry_of(document.getRoot(), "amdhsa.kernels");
  if (list == nullptr || !list->isArray()) return;
  for (auto& node : const_cast<llvm::msgpack::DocNode*>(list)->getArray()) {
    Kernel kernel = kernel_of(node);
    const std::string symbol = text_of(node, ".symbol");
    const std::uint64_t descriptor = symbol_address(file, bytes, symbol);
    if (descriptor > size() - sizeof(llvm::amdhsa::kernel_descriptor_t))
      bad(file, fmt::format("kernel {}: its descriptor lies outside the image", kernel.name));
    read_descriptor(kernel, descriptor, image() + descriptor);
    check_sizes(file, kernel);
    if (kernel.entry < text_ || kernel.entry - text_ >= text_bytes_)
      bad(file, fmt::format("kernel {}: its entry lies outside the text", kernel.name));
    kernels.push_back(std::move(kernel));
  }
}

std::uint64_t CodeObject::symbol_address(const std::filesystem::path& file, std::string_view bytes,
                                         const std::string& name) {
  const auto object = need(file, llvm::object::ELF64LEObjectFile::create(llvm::MemoryBufferRef(
                                     llvm::StringRef(bytes.data(), bytes.size()), "code object")));
  for (const auto& symbol : object.getDynamicSymbolIterators()) {
    auto found = symbol.getName();
    if (!found) bad(file, llvm::toString(found.takeError()));
    if (*found == name) return need(file, symbol.getAddress());
  }
  bad(file, fmt::format("has no symbol {}", name));
}

const Program& CodeObject::program() {
  if (program_ == nullptr) program_ = decode(chip, {image() + text_, text_bytes_}, base() + text_);
  return *program_;
}

}  // namespace monoref::device::gfx
