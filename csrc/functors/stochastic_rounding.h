// FP32 to bfloat16, up or down by chance: a number between two bfloat16 values becomes the upper
// one with a probability of its distance from the lower one, so that the mean of many roundings is
// the number itself. Nearest rounding would keep a slow average where it is for ever.
//
// The chance has no state: it is a hash of a seed, the step and the place of the element, the same
// on every device and for any share of the work.
#pragma once

#include <stdint.h>

#include "common/macros.h"
#include "functors/half.h"

namespace lightning_mp {

// From here on, in magnitude, everything is rounded down: to the largest finite number, or from
// infinity to itself. A finite number never becomes infinity.
constexpr uint32_t kLargestBFloat16 = 0x7F7F0000u;

// What is the same for all elements of a row.
struct RandomKey {
  uint32_t first;
  uint32_t second;
};

// SplitMix64 (Steele, Lea and Flood, 2014) of the seed, at the bits of the step.
HOST_DEVICE RandomKey random_key(uint64_t seed, float step) {
  uint64_t z = seed + (static_cast<uint64_t>(bits_of(step)) + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  z = z ^ (z >> 31);
  return RandomKey{static_cast<uint32_t>(z), static_cast<uint32_t>(z >> 32)};
}

// In what follows Words is uint32_t or a vector of them.

HOST_DEVICE uint32_t where_above(uint32_t a, uint32_t bound, uint32_t above, uint32_t other) {
  return a > bound ? above : other;
}

// 32 random bits for each place: the finaliser lowbias32 (Wellons, 2018: a bias of 0.17, near the
// least that is known for two multiplications), with a key before each of them and without its last
// step, which chance_of() does. Places are counted modulo 2^32.
template <class Words>
HOST_DEVICE Words random_words(Words place, RandomKey key) {
  Words x = place + Words(key.first);
  x = (x ^ (x >> 16)) * Words(0x7FEB352Du);
  return ((x ^ (x >> 15)) + Words(key.second)) * Words(0x846CA68Bu);
}

// How many states of an element share its random bits.
constexpr int kMaxRoundedStates = 2;

// A number below 2^16 for a state: half of x ^ (x >> 16).
template <class Words>
HOST_DEVICE Words chance_of(Words random, int state) {
  const Words upper = random >> 16;
  return state == 0 ? (random ^ upper) & Words(0xFFFFu) : upper;
}

// FP32 bits whose upper half is the bfloat16 that they are rounded to; the lower half may hold
// anything. What is a bfloat16 value stays one; every NaN becomes the same one, as in rounding to
// nearest. Where no magnitude reaches kLargestBFloat16 the result is bits + chance.
template <class Words>
HOST_DEVICE Words rounded_to_upper(Words bits, Words chance) {
  const Words magnitude = bits & Words(kMagnitudeMask);
  const Words less = where_above(magnitude, Words(kLargestBFloat16 - 1), Words(0u), chance);
  return where_above(magnitude, Words(kInfinityBits), Words(0x7FC00000u), bits + less);
}

// A rule whose states are stored so. What it computes is FP32 all the same.
template <class Rule>
struct Rounded : Rule {
  using State = BFloat16;
};

}  // namespace lightning_mp
