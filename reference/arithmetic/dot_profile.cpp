#include "reference/arithmetic/dot_profile.hpp"

#include <deque>
#include <mutex>
#include <string>

#include "reference/arithmetic/dot_hopper.hpp"
#include "reference/arithmetic/dot_portable.hpp"
#include "reference/core/error.hpp"
#include "reference/formats/canonical_nan.hpp"

namespace monoref {
namespace {

/// A deque, so that references survive additions.
struct Registry {
  std::mutex mutex;
  std::deque<DotProfile> profiles{portable_dot_profile(), hopper_mma_dot_profile(),
                                  hopper_wgmma_dot_profile()};
};

Registry& registry() {
  static Registry all;
  return all;
}

void check_lengths(const DotProfile& profile, std::size_t a, std::size_t b, std::size_t step) {
  if (a != b) refuse("dot {}: lengths are {} and {}, must be equal", profile.name, a, b);
  if (a % step != 0)
    refuse("dot {}: length is {}, must be a multiple of {}", profile.name, a, step);
}

}  // namespace

float dot_bf16(const DotProfile& profile, std::span<const std::uint16_t> a,
               std::span<const std::uint16_t> b, float c) {
  check_lengths(profile, a.size(), b.size(), profile.bf16_step);
  return canonical(profile.bf16(a, b, c));
}

float dot_e4m3(const DotProfile& profile, std::span<const std::uint8_t> a,
               std::span<const std::uint8_t> b, float c) {
  check_lengths(profile, a.size(), b.size(), profile.e4m3_step);
  return canonical(profile.e4m3(a, b, c));
}

const DotProfile& dot_profile(std::string_view name) {
  std::string known;
  for (const DotProfile* profile : dot_profiles()) {
    if (profile->name == name) return *profile;
    known += (known.empty() ? "" : ", ") + std::string(profile->name);
  }
  refuse("dot: no profile '{}'; the profiles are {}", name, known);
}

std::vector<const DotProfile*> dot_profiles() {
  Registry& all = registry();
  const std::scoped_lock lock(all.mutex);
  std::vector<const DotProfile*> list;
  for (const DotProfile& profile : all.profiles) list.push_back(&profile);
  return list;
}

void add_dot_profile(const DotProfile& profile) {
  if (profile.bf16_step == 0 || profile.e4m3_step == 0)
    refuse("dot: profile '{}' has a step of 0, must be at least 1", profile.name);
  if (profile.bf16 == nullptr || profile.e4m3 == nullptr)
    refuse("dot: profile '{}' lacks a function, must have bf16 and e4m3", profile.name);
  Registry& all = registry();
  const std::scoped_lock lock(all.mutex);
  for (const DotProfile& existing : all.profiles)
    if (existing.name == profile.name) refuse("dot: profile '{}' exists already", profile.name);
  all.profiles.push_back(profile);
}

}  // namespace monoref
