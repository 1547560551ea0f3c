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

  // Stores words below 2^16 as bits of halves.
  HOST_DEVICE void store(BFloat16* to) const { to->bits = static_cast<uint16_t>(value); }
};

HOST_DEVICE Words operator+(Words a, Words b) { return Words(a.value + b.value); }

HOST_DEVICE Words operator*(Words a, Words b) { return Words(a.value * b.value); }

HOST_DEVICE Words operator^(Words a, Words b) { return Words(a.value ^ b.value); }

HOST_DEVICE Words operator&(Words a, Words b) { return Words(a.value & b.value); }

HOST_DEVICE Words operator>>(Words a, int count) { return Words(a.value >> count); }

// `above` where a > bound, elsewhere `other`; both below 2^31.
HOST_DEVICE Words where_above(Words a, Words bound, Words above, Words other) {
  return a.value > bound.value ? above : other;
}

}  // namespace lightning_mp::cpu::base
