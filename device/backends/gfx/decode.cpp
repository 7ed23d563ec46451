// LLVM's disassembler turns a text section into instructions, and its printer writes each in the
// assembly that AMD documents. That text is what is read here: LLVM's installed headers name an
// instruction's opcode but not which of its operands is which.
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>

#include "device/backends/gfx/llvm.hpp"
#include "device/backends/gfx/program.hpp"
#include "device/backends/gfx/table.hpp"

namespace monoref::device::gfx {
namespace {

/// Throws Unsupported for the instruction that is being read.
[[noreturn]] void cannot(const std::string& what) {
  throw Unsupported{what};
}

bool drop_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

std::optional<std::int64_t> whole_number(std::string_view text) {
  const bool negative = drop_prefix(text, "-");
  const int base = drop_prefix(text, "0x") ? 16 : 10;
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return negative ? -static_cast<std::int64_t>(value) : static_cast<std::int64_t>(value);
}

std::int64_t need_number(std::string_view text) {
  const auto value = whole_number(text);
  if (!value) cannot("'" + std::string(text) + "' is no number");
  return *value;
}

/// The bits of 1.0 and the like as the instruction's type has them.
std::uint64_t float_bits(double value, Type type) {
  // The constant 1 / (2 pi) is printed with fewer digits than it has.
  constexpr double kInverseTurn = 0.15915494;
  const bool turn = std::abs(std::abs(value) - kInverseTurn) < 1e-7;
  const std::uint64_t sign = value < 0 ? 1 : 0;
  switch (type) {
    case Type::kB16: {
      if (turn) return 0x3118 | sign << 15;
      // Powers of two and zero: only the exponent moves.
      const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
      const std::uint32_t magnitude = bits & 0x7fffffffU;
      return (magnitude == 0 ? 0 : (magnitude >> 13) - (112U << 10)) | sign << 15;
    }
    case Type::kB64:
    case Type::kF64:
      return turn ? 0x3fc45f306dc9c882 | sign << 63 : std::bit_cast<std::uint64_t>(value);
    default:
      return turn ? 0x3e22f983 | sign << 31
                  : std::bit_cast<std::uint32_t>(static_cast<float>(value));
  }
}

std::optional<std::uint16_t> scalar_by_name(std::string_view name) {
  static const std::map<std::string_view, std::uint16_t> kNames{{"flat_scratch", 102},
                                                                {"flat_scratch_lo", 102},
                                                                {"flat_scratch_hi", 103},
                                                                {"xnack_mask", 104},
                                                                {"xnack_mask_lo", 104},
                                                                {"xnack_mask_hi", 105},
                                                                {"vcc", kVcc},
                                                                {"vcc_lo", kVcc},
                                                                {"vcc_hi", kVcc + 1},
                                                                {"m0", kM0},
                                                                {"exec", kExec},
                                                                {"exec_lo", kExec},
                                                                {"exec_hi", kExec + 1},
                                                                {"vccz", kVccz},
                                                                {"src_vccz", kVccz},
                                                                {"execz", kExecz},
                                                                {"src_execz", kExecz},
                                                                {"scc", kScc},
                                                                {"src_scc", kScc}};
  const auto found = kNames.find(name);
  if (found == kNames.end()) return std::nullopt;
  return found->second;
}

/// v7, s[4:5], a[0:3], ttmp4: the number of the first register.
std::optional<unsigned> numbered(std::string_view text, std::string_view prefix) {
  if (!drop_prefix(text, prefix) || text.empty()) return std::nullopt;
  if (drop_prefix(text, "[")) text = text.substr(0, text.find_first_of(":]"));
  unsigned value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

Operand constant(std::uint64_t value) {
  Operand operand;
  operand.kind = OperandKind::kConstant;
  operand.value = value;
  return operand;
}

Operand reg(OperandKind kind, unsigned index) {
  Operand operand;
  operand.kind = kind;
  operand.index = static_cast<std::uint16_t>(index);
  return operand;
}

/// hwreg(HW_REG_MODE, 4, 2) as the number that the instruction holds.
std::uint64_t hardware_register(std::string_view text) {
  std::vector<std::string_view> parts;
  for (std::size_t at = 0; at != text.npos;) {
    const std::size_t comma = text.find(',', at);
    parts.push_back(trimmed(text.substr(at, comma - at)));
    at = comma == text.npos ? comma : comma + 1;
  }
  std::uint64_t id = parts[0] == "HW_REG_MODE" ? 1 : 0;
  if (id == 0) id = static_cast<std::uint64_t>(whole_number(parts[0]).value_or(63));
  const std::uint64_t offset =
      parts.size() == 3 ? static_cast<std::uint64_t>(need_number(parts[1])) : 0;
  const std::uint64_t width =
      parts.size() == 3 ? static_cast<std::uint64_t>(need_number(parts[2])) : 32;
  return id | offset << 6 | (width - 1) << 11;
}

Operand parse_plain(std::string_view text, Type type) {
  if (const auto v = numbered(text, "v")) return reg(OperandKind::kVector, *v);
  if (const auto a = numbered(text, "a")) return reg(OperandKind::kVector, kFirstAccumulator + *a);
  if (const auto s = numbered(text, "s")) return reg(OperandKind::kScalar, *s);
  if (const auto t = numbered(text, "ttmp")) return reg(OperandKind::kScalar, 108 + *t);
  if (const auto named = scalar_by_name(text)) return reg(OperandKind::kScalar, *named);
  if (text == "src_shared_base") return constant(kSharedAperture);
  if (text == "src_private_base") return constant(kPrivateAperture);
  if (text == "src_shared_limit") return constant(kSharedAperture + kApertureBytes - 1);
  if (text == "src_private_limit") return constant(kPrivateAperture + kApertureBytes - 1);
  if (text == "off") return {};
  if (drop_prefix(text, "lit(")) text.remove_suffix(1);
  if (const auto number = whole_number(text)) {
    const bool upper_half = type == Type::kF64 && text.starts_with("0x");
    return constant(static_cast<std::uint64_t>(*number) << (upper_half ? 32 : 0));
  }
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size())
    return constant(float_bits(value, type));
  cannot("operand '" + std::string(text) + "'");
}

/// An operand with its modifiers: -v1, |v1|, -|v1|, neg(1), sext(v1).
Operand parse_operand(std::string_view text, Type type) {
  if (drop_prefix(text, "hwreg("))
    return constant(hardware_register(text.substr(0, text.size() - 1)));
  bool negate = false;
  bool absolute = false;
  bool extend = false;
  const bool is_number = whole_number(text).has_value();
  if (!is_number && text.size() > 1 && text[0] == '-' && (text[1] < '0' || text[1] > '9')) {
    negate = true;
    text.remove_prefix(1);
  }
  if (drop_prefix(text, "neg(")) {
    negate = true;
    text.remove_suffix(1);
  }
  if (drop_prefix(text, "abs(")) {
    absolute = true;
    text.remove_suffix(1);
  }
  if (drop_prefix(text, "sext(")) {
    extend = true;
    text.remove_suffix(1);
  }
  if (drop_prefix(text, "|")) {
    absolute = true;
    text.remove_suffix(1);
  }
  Operand operand = parse_plain(text, type);
  operand.negate = negate;
  operand.absolute = absolute;
  operand.extend = extend;
  return operand;
}

/// [1,0,1] as bits, the first the lowest.
std::uint8_t bit_list(std::string_view list) {
  std::uint8_t bits = 0;
  unsigned at = 0;
  for (const char c : list)
    if (c == '0' || c == '1') bits |= static_cast<std::uint8_t>((c == '1' ? 1U : 0U) << at++);
  return bits;
}

Select select_by_name(std::string_view name) {
  static const std::map<std::string_view, Select> kNames{
      {"BYTE_0", Select::kByte0}, {"BYTE_1", Select::kByte1}, {"BYTE_2", Select::kByte2},
      {"BYTE_3", Select::kByte3}, {"WORD_0", Select::kWord0}, {"WORD_1", Select::kWord1},
      {"DWORD", Select::kDword}};
  const auto found = kNames.find(name);
  if (found == kNames.end()) cannot("SDWA selection " + std::string(name));
  return found->second;
}

/// What the modifiers of an instruction say that need its operands first.
struct Modifiers {
  std::optional<std::string_view> lanes;  ///< DPP's move, as row_shr:1
  unsigned row_mask = 15, bank_mask = 15;
  bool zero_where_none = false;
};

/// The lane that lane l reads; -1 where there is none.
int moved_lane(std::string_view name, std::string_view value, int l) {
  const int row = l & ~15;
  const int in_row = l & 15;
  const auto amount = [&] { return static_cast<int>(need_number(value)); };
  const auto within_row = [&](int place) { return place < 0 || place > 15 ? -1 : row + place; };
  if (name == "quad_perm") {
    std::array<int, 4> order{};
    unsigned n = 0;
    for (const char c : value)
      if (c >= '0' && c <= '3' && n < 4) order[n++] = c - '0';
    return (l & ~3) + order[static_cast<std::size_t>(l & 3)];
  }
  if (name == "row_shl") return within_row(in_row + amount());
  if (name == "row_shr") return within_row(in_row - amount());
  if (name == "row_ror") return row + ((in_row - amount()) & 15);
  if (name == "row_mirror") return row + 15 - in_row;
  if (name == "row_half_mirror") return (l & ~7) + 7 - (l & 7);
  if (name == "row_newbcast") return row + amount();
  if (name == "wave_shl") return l == 63 ? -1 : l + 1;
  if (name == "wave_rol") return (l + 1) & 63;
  if (name == "wave_shr") return l - 1;
  if (name == "wave_ror") return (l - 1) & 63;
  if (name == "row_bcast" && amount() == 15) return row == 0 ? -1 : row - 1;
  if (name == "row_bcast" && amount() == 31) return l < 32 ? -1 : 31;
  cannot("lane move " + std::string(name));
}

LaneMoves lane_moves(const Modifiers& modifiers) {
  LaneMoves moves;
  const std::string_view text = *modifiers.lanes;
  const std::size_t colon = text.find(':');
  const std::string_view value = colon == text.npos ? "" : text.substr(colon + 1);
  for (unsigned l = 0; l < kLanes; ++l) {
    moves.from[l] =
        static_cast<std::int8_t>(moved_lane(text.substr(0, colon), value, static_cast<int>(l)));
    const bool enabled =
        (modifiers.row_mask >> (l / 16) & 1) != 0 && (modifiers.bank_mask >> (l % 16 / 4) & 1) != 0;
    if (!enabled) moves.enabled &= ~(std::uint64_t{1} << l);
  }
  moves.zero_where_none = modifiers.zero_where_none;
  return moves;
}

/// Modifiers that say nothing to an executor without caches, or repeat the default.
bool says_nothing(std::string_view name) {
  static const std::set<std::string_view> kNames{"sc1", "nt", "glc", "slc", "dlc"};
  return kNames.contains(name);
}

void read_numeric_modifier(Inst& inst, Modifiers& modifiers, std::string_view name,
                           std::string_view value) {
  const auto number = [&] { return static_cast<std::int32_t>(need_number(value)); };
  if (name == "offset" || name == "offset0")
    inst.offset = number();
  else if (name == "offset1")
    inst.offset1 = number();
  else if (name == "bitop3")
    inst.table = static_cast<std::uint16_t>(number());
  else if (name == "mul")
    inst.output_modifier = number() == 2 ? 1 : 2;
  else if (name == "div")
    inst.output_modifier = 3;
  else if (name == "cbsz")
    inst.cbsz = static_cast<std::uint8_t>(number());
  else if (name == "abid")
    inst.abid = static_cast<std::uint8_t>(number());
  else if (name == "blgp")
    inst.blgp = static_cast<std::uint8_t>(value.starts_with("[") ? bit_list(value) : number());
  else if (name == "row_mask")
    modifiers.row_mask = static_cast<unsigned>(number());
  else if (name == "bank_mask")
    modifiers.bank_mask = static_cast<unsigned>(number());
  else if (name == "bound_ctrl")
    modifiers.zero_where_none = true;
  else
    cannot("modifier " + std::string(name));
}

void read_modifier(Inst& inst, Modifiers& modifiers, std::string_view text) {
  const std::size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const std::string_view value = colon == text.npos ? "" : text.substr(colon + 1);
  if (name == "clamp")
    inst.clamp = true;
  else if (name == "sc0")
    inst.returns = true;
  else if (name == "offen")
    inst.offen = true;
  else if (name == "idxen")
    inst.idxen = true;
  else if (name == "lds")
    inst.to_lds = true;
  else if (name == "op_sel")
    inst.op_sel = bit_list(value);
  else if (name == "op_sel_hi")
    inst.op_sel_hi = bit_list(value);
  else if (name == "neg_lo")
    inst.neg_lo = bit_list(value);
  else if (name == "neg_hi")
    inst.neg_hi = bit_list(value);
  else if (name == "dst_sel")
    inst.dst_select = select_by_name(value);
  else if (name == "dst_unused")
    inst.dst_unused = value == "UNUSED_PRESERVE" ? Unused::kPreserve
                      : value == "UNUSED_SEXT"   ? Unused::kSext
                                                 : Unused::kPad;
  else if (name == "src0_sel")
    inst.src[0].select = select_by_name(value);
  else if (name == "src1_sel")
    inst.src[1].select = select_by_name(value);
  else if (name.starts_with("quad_perm") || (name.starts_with("row_") && name != "row_mask") ||
           name.starts_with("wave_"))
    modifiers.lanes = text;
  else if (!says_nothing(name))
    read_numeric_modifier(inst, modifiers, name, value);
}

/// Splits at commas and then spaces that no bracket encloses.
struct Pieces {
  std::vector<std::string_view> operands;
  std::vector<std::string_view> modifiers;
};
Pieces pieces_of(std::string_view text) {
  Pieces pieces;
  int depth = 0;
  std::size_t begin = 0;
  const auto take = [&](std::size_t end, bool modifier) {
    const std::string_view piece = trimmed(text.substr(begin, end - begin));
    begin = end + 1;
    if (!piece.empty()) (modifier ? pieces.modifiers : pieces.operands).push_back(piece);
  };
  bool in_modifiers = false;
  bool started = false;  // something of this piece was seen
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '[' || c == '(') ++depth;
    if (c == ']' || c == ')') --depth;
    if (depth != 0) continue;
    if (c == ',') {
      take(at, in_modifiers);
      started = false;
    } else if (c == ' ' && started) {
      take(at, in_modifiers);
      in_modifiers = true;
      started = false;
    } else if (c != ' ') {
      started = true;
    }
  }
  take(text.size(), in_modifiers);
  return pieces;
}

std::string_view without_encoding(std::string_view mnemonic) {
  for (const std::string_view suffix : {"_e32", "_e64", "_sdwa", "_dpp"})
    if (mnemonic.ends_with(suffix)) return mnemonic.substr(0, mnemonic.size() - suffix.size());
  return mnemonic;
}

void unknown(Wave&, const Inst&) {
  throw Unsupported{"it is not known"};
}

/// One line of assembly as an instruction.
Inst parse(std::string_view line, Program& program) {
  const std::size_t space = line.find(' ');
  const std::string_view mnemonic = line.substr(0, space);
  const Entry* const entry = find_entry(without_encoding(mnemonic));
  Inst inst;
  inst.run = unknown;
  if (entry == nullptr) return inst;
  if (entry->results == kNoOperands) {
    inst.run = entry->run;
    return inst;
  }
  const Pieces pieces = pieces_of(space == line.npos ? "" : line.substr(space));
  // Modifiers first: whether an atomic returns, and what belongs to the sources.
  inst.op_sel_hi = entry->op_sel_hi;
  Modifiers modifiers;
  for (const std::string_view modifier : pieces.modifiers) read_modifier(inst, modifiers, modifier);
  // A load to LDS has no register to write.
  const bool no_result = inst.to_lds || (entry->results == kByReturn && !inst.returns);
  const std::size_t results = no_result ? 0 : static_cast<std::size_t>(std::abs(entry->results));
  if (pieces.operands.size() < results || pieces.operands.size() > results + inst.src.size())
    cannot("so many operands");
  for (std::size_t n = 0; n < pieces.operands.size(); ++n) {
    Operand operand = parse_operand(pieces.operands[n], entry->type);
    if (n < results) {
      inst.dst[n] = operand;
    } else {
      operand.select = inst.src[n - results].select;
      inst.src[n - results] = operand;
    }
  }
  inst.sources = static_cast<std::uint8_t>(pieces.operands.size() - results);
  inst.sdwa = mnemonic.ends_with("_sdwa");
  if (modifiers.lanes) {
    inst.moves = &program.moves.emplace_back(lane_moves(modifiers));
    inst.src[0].permuted = true;
  }
  // A result that anything changes on its way does not go straight to its register.
  inst.direct = !inst.sdwa && inst.moves == nullptr && !inst.clamp && inst.output_modifier == 0;
  inst.run = entry->run;
  return inst;
}

/// Branches count words from the next instruction.
bool is_branch(std::string_view line) {
  return line.starts_with("s_branch") || line.starts_with("s_cbranch");
}

void resolve_branches(Program& program) {
  std::unordered_map<std::uint32_t, std::uint32_t> index_at;
  for (std::uint32_t n = 0; n < program.text.size(); ++n) index_at[program.offsets[n]] = n;
  for (std::uint32_t n = 0; n < program.text.size(); ++n) {
    if (!is_branch(program.text[n]) || program.code[n].run == unknown) continue;
    const auto words = static_cast<std::int16_t>(program.code[n].src[0].value);
    const auto target = static_cast<std::uint32_t>(static_cast<std::int64_t>(program.offsets[n]) +
                                                   4 + 4 * std::int64_t{words});
    const auto found = index_at.find(target);
    if (found == index_at.end()) cannot("branch to the middle of an instruction");
    program.code[n].target = found->second;
  }
}

void past_the_end(Wave&, const Inst&) {
  throw Fault{"the program ran past the end of its text section"};
}

}  // namespace

const Entry* find_entry(std::string_view name) {
  static const auto kEntries = [] {
    std::unordered_map<std::string_view, const Entry*> entries;
    for (const auto table : {sop_table(), smem_table(), vop_table(), vopc_table(), vop3_table(),
                             half_table(), convert_table(), wide_table(), vop3p_table(),
                             mfma_table(), ds_table(), flat_table(), mubuf_table()})
      for (const Entry& entry : table) entries.emplace(entry.name, &entry);
    return entries;
  }();
  const auto found = kEntries.find(name);
  return found == kEntries.end() ? nullptr : found->second;
}

std::unique_ptr<Program> decode(std::string_view chip, std::span<const std::byte> section,
                                std::uint64_t loaded_at) {
  auto program = std::make_unique<Program>();
  program->begin = loaded_at;
  program->chip = chip;
  Disassembler disassembler(chip);
  for (std::size_t at = 0; at < section.size();) {
    Disassembler::Line line = disassembler.at(section.subspan(at), loaded_at + at);
    Inst inst;
    try {
      inst = parse(line.text, *program);
    } catch (const Unsupported&) {
      inst = {};
      inst.run = unknown;
    }
    inst.index = static_cast<std::uint32_t>(program->code.size());
    program->code.push_back(inst);
    program->offsets.push_back(static_cast<std::uint32_t>(at));
    program->text.push_back(std::move(line.text));
    at += line.bytes;
  }
  resolve_branches(*program);
  Inst last;
  last.run = past_the_end;
  last.index = static_cast<std::uint32_t>(program->code.size());
  program->code.push_back(last);
  program->offsets.push_back(static_cast<std::uint32_t>(section.size()));
  return program;
}

std::vector<Mnemonic> mnemonics(const Program& program) {
  std::vector<Mnemonic> list;
  std::size_t end = 0;
  for (std::size_t n = 0; n < program.text.size(); ++n) {
    const std::string_view line = program.text[n];
    const std::string_view name = without_encoding(line.substr(0, line.find(' ')));
    list.push_back({std::string(name), program.code[n].run != unknown});
    if (name == "s_endpgm" || name == "s_branch" || name == "s_setpc_b64") end = list.size();
  }
  list.resize(end);
  return list;
}

std::vector<std::string> unknown_mnemonics(const Program& program) {
  std::set<std::string> names;
  for (std::size_t n = 0; n < program.text.size(); ++n)
    if (program.code[n].run == unknown)
      names.insert(program.text[n].substr(0, program.text[n].find(' ')));
  return {names.begin(), names.end()};
}

std::uint32_t Program::index_of(std::uint64_t address) const {
  const auto found = std::lower_bound(offsets.begin(), offsets.end(), address - begin);
  if (found == offsets.end() || begin + *found != address)
    throw Fault{"jump to " + std::to_string(address) + ", where no instruction begins"};
  return static_cast<std::uint32_t>(found - offsets.begin());
}

}  // namespace monoref::device::gfx
