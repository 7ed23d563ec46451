// Dot products under a profile: how a matrix instruction adds (matrix-cores sections 1 to 4).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace monoref {

/// One way of adding. A profile is data; `add_dot_profile` plugs in another.
struct DotProfile {
  std::string_view name;
  /// What the profile rests on, for reports.
  std::string_view grounds;
  /// True if no measurement or public bit-accurate model stands behind it; every verdict then says
  /// so.
  bool provisional = false;
  /// k of one instruction; lengths must be multiples of it.
  std::size_t bf16_step = 1;
  std::size_t e4m3_step = 1;
  /// sum over k of a[k] b[k], accumulated in ascending k, a step at a time, onto c. Called with
  /// equal lengths that are multiples of the step.
  float (*bf16)(std::span<const std::uint16_t> a, std::span<const std::uint16_t> b, float c);
  float (*e4m3)(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b, float c);
};

/// Dot product of BF16 codes, or of E4M3FN codes. Refuses lengths that differ or are not whole
/// steps. A NaN result is canonical.
float dot_bf16(const DotProfile& profile, std::span<const std::uint16_t> a,
               std::span<const std::uint16_t> b, float c);
float dot_e4m3(const DotProfile& profile, std::span<const std::uint8_t> a,
               std::span<const std::uint8_t> b, float c);

/// The profile of that name; refuses an unknown one, naming those there are. `portable`,
/// `hopper-mma` and `hopper-wgmma` are always there. The reference stays valid for the life of the
/// program.
const DotProfile& dot_profile(std::string_view name);

/// All profiles, in the order in which they were added.
std::vector<const DotProfile*> dot_profiles();

/// Adds a profile. Its strings must live as long as the program. Refuses a name that is taken, a
/// step of zero and a missing function.
void add_dot_profile(const DotProfile& profile);

}  // namespace monoref
