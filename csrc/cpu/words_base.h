// A "vector" of one 32-bit word, beside the Vector of simd_base.h.
#pragma once

#include "cpu/simd_base.h"
#include "functors/stochastic_rounding.h"

namespace lightning_mp::cpu::base {

struct Words {
  uint32_t value;

  HOST_DEVICE explicit Words(uint32_t word) : value(word) {}

  // The bits of numbers.
  HOST_DEVICE explicit Words(Vector numbers) : value(bits_of(numbers.value)) {}

  // `first` and the words that follow it.
  static HOST_DEVICE Words ramp(uint32_t first) { return Words(first); }

  // Stores the upper halves of two vectors of words, one after the other.
  static HOST_DEVICE void store_uppers(Words first, Words second, BFloat16* to) {
    to[0].bits = static_cast<uint16_t>(first.value >> 16);
    to[1].bits = static_cast<uint16_t>(second.value >> 16);
  }

  // Whether a word is at least `bound`.
  HOST_DEVICE bool reaches(uint32_t bound) const { return value >= bound; }
};

HOST_DEVICE Words operator+(Words a, Words b) { return Words(a.value + b.value); }

HOST_DEVICE Words operator*(Words a, Words b) { return Words(a.value * b.value); }

HOST_DEVICE Words operator^(Words a, Words b) { return Words(a.value ^ b.value); }

HOST_DEVICE Words operator&(Words a, Words b) { return Words(a.value & b.value); }

HOST_DEVICE Words operator>>(Words a, int count) { return Words(a.value >> count); }

HOST_DEVICE Words maximum_of(Words a, Words b) { return a.value > b.value ? a : b; }

// `above` where a > bound, elsewhere `other`; both below 2^31.
HOST_DEVICE Words where_above(Words a, Words bound, Words above, Words other) {
  return a.value > bound.value ? above : other;
}

}  // namespace lightning_mp::cpu::base
