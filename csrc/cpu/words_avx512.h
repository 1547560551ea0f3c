// Sixteen 32-bit words, with AVX-512 F and VL. The functions are those of words_base.h.
#pragma once

#include "cpu/simd_avx512.h"
#include "functors/stochastic_rounding.h"

namespace lightning_mp::cpu::avx512 {

struct Words {
  __m512i value;

  HOST_DEVICE explicit Words(__m512i words) : value(words) {}

  HOST_DEVICE explicit Words(uint32_t word) : value(_mm512_set1_epi32(static_cast<int>(word))) {}

  HOST_DEVICE explicit Words(Vector numbers) : value(_mm512_castps_si512(numbers.value)) {}

  static HOST_DEVICE Words ramp(uint32_t first) {
    const __m512i steps = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    return Words(_mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(first)), steps));
  }

  // Stores the upper halves of two vectors of words, one after the other.
  static HOST_DEVICE void store_uppers(Words first, Words second, BFloat16* to) {
    _mm512_storeu_si512(to,
                        _mm512_permutex2var_epi16(first.value, Vector::odd_places(), second.value));
  }

  // Whether a word is at least `bound`.
  HOST_DEVICE bool reaches(uint32_t bound) const {
    return _mm512_cmpge_epu32_mask(value, _mm512_set1_epi32(static_cast<int>(bound))) != 0;
  }
};

HOST_DEVICE Words operator+(Words a, Words b) { return Words(_mm512_add_epi32(a.value, b.value)); }

HOST_DEVICE Words operator*(Words a, Words b) {
  return Words(_mm512_mullo_epi32(a.value, b.value));
}

HOST_DEVICE Words operator^(Words a, Words b) { return Words(_mm512_xor_si512(a.value, b.value)); }

HOST_DEVICE Words operator&(Words a, Words b) { return Words(_mm512_and_si512(a.value, b.value)); }

HOST_DEVICE Words operator>>(Words a, int count) {
  return Words(_mm512_srli_epi32(a.value, static_cast<unsigned>(count)));
}

HOST_DEVICE Words maximum_of(Words a, Words b) { return Words(_mm512_max_epu32(a.value, b.value)); }

HOST_DEVICE Words where_above(Words a, Words bound, Words above, Words other) {
  return Words(_mm512_mask_mov_epi32(other.value, _mm512_cmpgt_epi32_mask(a.value, bound.value),
                                     above.value));
}

}  // namespace lightning_mp::cpu::avx512
