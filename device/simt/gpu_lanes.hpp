// What the targets with a GPU make of shuffle and ballot: included at the end of their headers.
#pragma once

namespace monoref::simt {
inline namespace MONOREF_SIMT_VARIANT {

template <LaneValue T>
MONOREF_MEMBER inline T shuffle_xor(T value, int mask) {
  return shuffle(value, lane() ^ mask);
}

template <LaneValue T>
MONOREF_MEMBER inline T shuffle_up(T value, int distance) {
  const int source = lane() - distance;
  return shuffle(value, source < 0 ? lane() : source);
}

template <LaneValue T>
MONOREF_MEMBER inline T shuffle_down(T value, int distance) {
  const int source = lane() + distance;
  return shuffle(value, source >= kWave ? lane() : source);
}

MONOREF_MEMBER inline bool any(bool predicate) {
  return ballot(predicate) != 0;
}
MONOREF_MEMBER inline bool all(bool predicate) {
  return ballot(!predicate) == 0;
}

}  // namespace MONOREF_SIMT_VARIANT
}  // namespace monoref::simt
