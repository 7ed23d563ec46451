// Constants that several stages round to binary32 in the same way.
#pragma once

namespace monoref {

/// log2(e) in binary32.
inline constexpr float kLog2E = 0x1.715476p+0f;

}  // namespace monoref
