// The tests that every backend passes, host and GPU alike. Each takes a backend and asserts.
#pragma once

#include "device/backend.hpp"

namespace monoref::device {

struct BehaviourTest {
  const char* name;
  void (*run)(Backend&);
};

/// All of them, for parameterised suites.
std::span<const BehaviourTest> behaviour_tests();

}  // namespace monoref::device
