// Sixteen floats, with AVX-512 F, BW, VL and DQ. The functions are those of simd_base.h.
#pragma once

#include <immintrin.h>

#include "common/macros.h"
#include "functors/half.h"

namespace lightning_mp::cpu::avx512 {

struct Vector {
  static constexpr int kWidth = 16;
  static constexpr bool kCanStream = true;
  // Vectors that differ() takes at once.
  static constexpr int kPair = 2;

  __m512 value;

  Vector() = default;

  HOST_DEVICE explicit Vector(__m512 numbers) : value(numbers) {}

  HOST_DEVICE explicit Vector(float number) : value(_mm512_set1_ps(number)) {}

  static HOST_DEVICE Vector load(const float* from) { return Vector(_mm512_loadu_ps(from)); }

  static HOST_DEVICE Vector load(const BFloat16* from) {
    return Vector(_mm512_castsi512_ps(_mm512_slli_epi32(widened(from), 16)));
  }

  static HOST_DEVICE Vector load(const Float16* from) {
    return Vector(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
  }

  HOST_DEVICE void store(float* to) const { _mm512_storeu_ps(to, value); }

  template <class Half>
  HOST_DEVICE void store(Half* to) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), packed(static_cast<Half*>(nullptr)));
  }

  // Writes 32 halves, one aligned line of a cache, past the caches.
  template <class Half>
  static HOST_DEVICE void stream_line(const Vector* vectors, Half* to) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to),
                        packed_pair(vectors[0], vectors[1], static_cast<Half*>(nullptr)));
  }

  // Whether a half is not the rounding of its number, bit for bit.
  template <class Half>
  static HOST_DEVICE bool differ(const float* numbers, const Half* halves) {
    const __m512i rounded =
        packed_pair(load(numbers), load(numbers + kWidth), static_cast<Half*>(nullptr));
    return _mm512_cmpneq_epi16_mask(rounded, _mm512_loadu_si512(halves)) != 0;
  }

  static HOST_DEVICE void finish_streams() { _mm_sfence(); }

  static HOST_DEVICE Vector join(const BFloat16* half, const uint16_t* remainder) {
    const __m512i lower = widened(remainder);
    const __m512i upper = _mm512_sub_epi32(widened(half), _mm512_srli_epi32(lower, 15));
    return Vector(_mm512_castsi512_ps(_mm512_or_si512(_mm512_slli_epi32(upper, 16), lower)));
  }

  HOST_DEVICE void split(BFloat16* half, uint16_t* remainder) const {
    const __m512i bits = canonical(_mm512_castps_si512(value), 0x7FC00000);
    const __m512i is_up = _mm512_and_si512(_mm512_srli_epi32(bits, 15), _mm512_set1_epi32(1));
    const __m512i upper = _mm512_add_epi32(_mm512_srli_epi32(bits, 16), is_up);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(half), _mm512_cvtepi32_epi16(upper));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(remainder), _mm512_cvtepi32_epi16(bits));
  }

  // The nearest half, as a float.
  template <class Half>
  HOST_DEVICE Vector rounded() const {
    return nearest(static_cast<Half*>(nullptr));
  }

  HOST_DEVICE Vector replaced_where_different(Vector a, Vector b, Vector other) const {
    const __mmask16 is_different =
        _mm512_cmpneq_epi32_mask(_mm512_castps_si512(a.value), _mm512_castps_si512(b.value));
    return Vector(_mm512_mask_mov_ps(value, is_different, other.value));
  }

  // 1, 3, 5 ... 63: the upper halves of the elements of two vectors.
  static HOST_DEVICE __m512i odd_places() {
    const __m512i evens =
        _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    return _mm512_add_epi32(_mm512_mullo_epi32(evens, _mm512_set1_epi32(0x00020002)),
                            _mm512_set1_epi32(0x00030001));
  }

 private:
  static HOST_DEVICE __m512i widened(const void* from) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(from)));
  }

  // The bits, but `nan` where this vector holds a NaN.
  HOST_DEVICE __m512i canonical(__m512i bits, int nan) const {
    return _mm512_mask_mov_epi32(bits, _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q),
                                 _mm512_set1_epi32(nan));
  }

  // The nearest bfloat16 in the upper half of each element; the lower half may hold anything.
  // Not by AVX-512 BF16, which would lose subnormal numbers.
  HOST_DEVICE __m512i rounded_to_upper() const {
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i is_odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i bias = _mm512_add_epi32(is_odd, _mm512_set1_epi32(0x7FFF));
    return canonical(_mm512_add_epi32(bits, bias), 0x7FC00000);
  }

  HOST_DEVICE __m256i packed(const BFloat16*) const {
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded_to_upper(), 16));
  }

  HOST_DEVICE __m256i packed(const Float16*) const {
    return _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }

  static HOST_DEVICE __m512i packed_pair(Vector first, Vector second, const BFloat16*) {
    return _mm512_permutex2var_epi16(first.rounded_to_upper(), odd_places(),
                                     second.rounded_to_upper());
  }

  static HOST_DEVICE __m512i packed_pair(Vector first, Vector second, const Float16* type) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(first.packed(type)), second.packed(type), 1);
  }

  HOST_DEVICE Vector nearest(const BFloat16*) const {
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xFFFF0000));
    return Vector(_mm512_castsi512_ps(_mm512_and_si512(rounded_to_upper(), upper)));
  }

  HOST_DEVICE Vector nearest(const Float16* type) const {
    return Vector(_mm512_cvtph_ps(packed(type)));
  }
};

HOST_DEVICE Vector operator+(Vector a, Vector b) { return Vector(_mm512_add_ps(a.value, b.value)); }

HOST_DEVICE Vector operator-(Vector a, Vector b) { return Vector(_mm512_sub_ps(a.value, b.value)); }

HOST_DEVICE Vector operator*(Vector a, Vector b) { return Vector(_mm512_mul_ps(a.value, b.value)); }

HOST_DEVICE Vector operator/(Vector a, Vector b) { return Vector(_mm512_div_ps(a.value, b.value)); }

HOST_DEVICE Vector multiply_add(Vector a, Vector b, Vector c) {
  return Vector(_mm512_fmadd_ps(a.value, b.value, c.value));
}

HOST_DEVICE Vector square_root(Vector a) { return Vector(_mm512_sqrt_ps(a.value)); }

// Minimum and maximum return their second operand if one of the two is a NaN.
HOST_DEVICE Vector clamp(Vector a, Vector bound) {
  const __m512 least = _mm512_xor_ps(bound.value, _mm512_set1_ps(-0.0f));
  return Vector(_mm512_max_ps(least, _mm512_min_ps(bound.value, a.value)));
}

HOST_DEVICE Vector maximum_of(Vector a, Vector b) {
  return Vector(_mm512_max_ps(a.value, b.value));
}

HOST_DEVICE Vector power_of_two(Vector shifted) {
  return Vector(_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(shifted.value), 23)));
}

HOST_DEVICE Vector zero_below(Vector value, Vector x, Vector bound) {
  const __mmask16 is_kept = _mm512_cmp_ps_mask(x.value, bound.value, _CMP_NLT_UQ);
  return Vector(_mm512_maskz_mov_ps(is_kept, value.value));
}

}  // namespace lightning_mp::cpu::avx512
