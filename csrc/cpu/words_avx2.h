// Eight 32-bit words, with AVX2. The functions are those of words_base.h.
#pragma once

#include "cpu/simd_avx2.h"
#include "functors/stochastic_rounding.h"

namespace lightning_mp::cpu::avx2 {

struct Words {
  __m256i value;

  HOST_DEVICE explicit Words(__m256i words) : value(words) {}

  HOST_DEVICE explicit Words(uint32_t word) : value(_mm256_set1_epi32(static_cast<int>(word))) {}

  HOST_DEVICE explicit Words(Vector numbers) : value(_mm256_castps_si256(numbers.value)) {}

  static HOST_DEVICE Words ramp(uint32_t first) {
    const __m256i steps = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return Words(_mm256_add_epi32(_mm256_set1_epi32(static_cast<int>(first)), steps));
  }

  // Stores the upper halves of two vectors of words, one after the other.
  static HOST_DEVICE void store_uppers(Words first, Words second, BFloat16* to) {
    // By halves of 128 bits, which the permutation puts in order.
    const __m256i packed = _mm256_packus_epi32(_mm256_srli_epi32(first.value, 16),
                                               _mm256_srli_epi32(second.value, 16));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(packed, 0xD8));
  }

  // Whether a word is at least `bound`.
  HOST_DEVICE bool reaches(uint32_t bound) const {
    const __m256i least = _mm256_set1_epi32(static_cast<int>(bound));
    const __m256i is_reached = _mm256_cmpeq_epi32(_mm256_max_epu32(value, least), value);
    return _mm256_movemask_epi8(is_reached) != 0;
  }
};

HOST_DEVICE Words operator+(Words a, Words b) { return Words(_mm256_add_epi32(a.value, b.value)); }

HOST_DEVICE Words operator*(Words a, Words b) {
  return Words(_mm256_mullo_epi32(a.value, b.value));
}

HOST_DEVICE Words operator^(Words a, Words b) { return Words(_mm256_xor_si256(a.value, b.value)); }

HOST_DEVICE Words operator&(Words a, Words b) { return Words(_mm256_and_si256(a.value, b.value)); }

HOST_DEVICE Words operator>>(Words a, int count) {
  return Words(_mm256_srli_epi32(a.value, count));
}

HOST_DEVICE Words maximum_of(Words a, Words b) { return Words(_mm256_max_epu32(a.value, b.value)); }

HOST_DEVICE Words where_above(Words a, Words bound, Words above, Words other) {
  return Words(
      _mm256_blendv_epi8(other.value, above.value, _mm256_cmpgt_epi32(a.value, bound.value)));
}

}  // namespace lightning_mp::cpu::avx2
