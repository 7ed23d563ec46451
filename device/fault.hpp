// Faults that are planted on purpose, in kernels and in the host code of chains, so that `monoref
// mutants` can show that each is found. A fault is declared where it stands:
//
//   if (MONOREF_FAULT(insert_negative_slot_wraps, "P10", "slot -1 writes the last slot"))
//     slot += capacity;
//
// which says its name, the bug case of fuzz/bug_cases.md it is modelled on (or "own") and what it
// does. The declaration enters itself into the list of the program; nobody keeps another one. It
// belongs to the stage that its file is named after, or to those that it names:
//
//   MONOREF_FAULT(mx_nibbles_swapped, "own", "...", .stages = {"expert_up_gate"})
//
// Kernels get MONOREF_FAULT from device/simt.hpp, where also the forms for a fault that stands in
// several places are; host code asks with MONOREF_FAULT_NAME.
#pragma once

#include <array>
#include <span>
#include <string_view>
#include <vector>

namespace monoref::device {

/// A declared fault.
struct Fault {
  std::string_view name;
  std::string_view bug_case;  ///< "P10", or "own"
  std::string_view what;      ///< one line
  std::string_view file;      ///< path of the source that declares it, and the line there
  int line = 0;
  /// Whose kernels it stands in; none named: the stage that the file is named after.
  std::array<std::string_view, 2> stages = {};
  /// Shows only where ranks have devices of their own.
  bool needs_devices = false;

  bool operator==(const Fault&) const = default;
  /// Whether the fault is among those of this stage.
  bool is_of(std::string_view stage) const;
};

/// Enters a fault. The variants and instances of a kernel enter the same one again and again.
void declare_fault(const Fault& fault);
/// Enters a place, other than its declaration, that a fault stands in too.
void use_fault(std::string_view name);

/// What was entered, each fault once: by file (kernels before headers) and line. Throws
/// std::logic_error on a name that is declared differently in two places, on a used one that is
/// declared nowhere, and on one in a header that names no stage.
std::vector<Fault> checked_faults(std::span<const Fault> declared,
                                  std::span<const std::string_view> used);
/// The faults of this program.
const std::vector<Fault>& planted_faults();

/// Enters what `Entry` describes when the program starts, if anything calls `enter`.
template <class Entry>
struct FaultEntry {
  static inline const bool entered = (Entry::enter(), true);
};
template <class Entry>
constexpr void enter() {
  static_cast<void>(&FaultEntry<Entry>::entered);
}

}  // namespace monoref::device

/// Declares a fault, and is its name.
#define MONOREF_FAULT_NAME(fault_name, code, sentence, ...)                              \
  ([] {                                                                                  \
    struct Declaration {                                                                 \
      static void enter() {                                                              \
        ::monoref::device::declare_fault({.name = #fault_name,                           \
                                          .bug_case = code,                              \
                                          .what = sentence,                              \
                                          .file = __FILE__,                              \
                                          .line = __LINE__ __VA_OPT__(, ) __VA_ARGS__}); \
      }                                                                                  \
    };                                                                                   \
    ::monoref::device::enter<Declaration>();                                             \
    return ::std::string_view(#fault_name);                                              \
  }())
/// Enters another place of a fault, and is its name.
#define MONOREF_FAULT_NAME_AT(fault_name)                                \
  ([] {                                                                  \
    struct Use {                                                         \
      static void enter() { ::monoref::device::use_fault(#fault_name); } \
    };                                                                   \
    ::monoref::device::enter<Use>();                                     \
    return ::std::string_view(#fault_name);                              \
  }())
