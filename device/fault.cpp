#include "device/fault.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <tuple>

namespace monoref::device {
namespace {

/// Filled while the program starts, by one thread; only read after that.
struct Entered {
  std::vector<Fault> declared;
  std::vector<std::string_view> used;
};
Entered& entered() {
  static Entered lists;
  return lists;
}

std::string_view name_of_file(std::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

bool is_header(const Fault& fault) {
  return fault.file.ends_with(".hpp");
}

/// Where the fault stands among those of its stage.
auto place_of(const Fault& fault) {
  return std::tuple(is_header(fault), name_of_file(fault.file), fault.line, fault.name);
}

}  // namespace

bool Fault::is_of(std::string_view stage) const {
  if (!stages.front().empty()) return std::ranges::find(stages, stage) != stages.end();
  const std::string_view source = name_of_file(file);
  return source.substr(0, source.rfind('.')) == stage;
}

void declare_fault(const Fault& fault) {
  entered().declared.push_back(fault);
}

void use_fault(std::string_view name) {
  entered().used.push_back(name);
}

std::vector<Fault> checked_faults(std::span<const Fault> declared,
                                  std::span<const std::string_view> used) {
  std::vector<Fault> faults;
  for (const Fault& fault : declared) {
    const auto known = std::ranges::find(faults, fault.name, &Fault::name);
    if (known == faults.end())
      faults.push_back(fault);
    else if (*known != fault)
      throw std::logic_error(fmt::format("fault {} is declared at {}:{} and at {}:{}", fault.name,
                                         name_of_file(known->file), known->line,
                                         name_of_file(fault.file), fault.line));
    if (is_header(fault) && fault.stages.front().empty())
      throw std::logic_error(fmt::format("fault {} stands in the header {} and names no stage",
                                         fault.name, name_of_file(fault.file)));
  }
  for (const std::string_view name : used)
    if (std::ranges::find(faults, name, &Fault::name) == faults.end())
      throw std::logic_error(fmt::format("fault {} is used and declared nowhere", name));
  std::ranges::sort(faults, {}, place_of);
  return faults;
}

const std::vector<Fault>& planted_faults() {
  static const std::vector<Fault> faults = checked_faults(entered().declared, entered().used);
  return faults;
}

}  // namespace monoref::device
