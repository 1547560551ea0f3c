// Eight floats, with AVX2, FMA and F16C. The functions are those of simd_base.h.
#pragma once

#include <immintrin.h>

#include "common/macros.h"
#include "functors/half.h"

namespace lightning_mp::cpu::avx2 {

struct Vector {
  static constexpr int kWidth = 8;
  static constexpr bool kCanStream = true;
  // Vectors that differ() takes at once.
  static constexpr int kPair = 1;

  __m256 value;

  Vector() = default;

  HOST_DEVICE explicit Vector(__m256 numbers) : value(numbers) {}

  HOST_DEVICE explicit Vector(float number) : value(_mm256_set1_ps(number)) {}

  static HOST_DEVICE Vector load(const float* from) { return Vector(_mm256_loadu_ps(from)); }

  static HOST_DEVICE Vector load(const BFloat16* from) {
    return Vector(_mm256_castsi256_ps(_mm256_slli_epi32(widened(from), 16)));
  }

  static HOST_DEVICE Vector load(const Float16* from) {
    return Vector(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
  }

  HOST_DEVICE void store(float* to) const { _mm256_storeu_ps(to, value); }

  template <class Half>
  HOST_DEVICE void store(Half* to) const {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), packed(static_cast<Half*>(nullptr)));
  }

  // Writes 32 halves, one aligned line of a cache, past the caches.
  template <class Half>
  static HOST_DEVICE void stream_line(const Vector* vectors, Half* to) {
    constexpr Half* kType = nullptr;
    __m256i* line = reinterpret_cast<__m256i*>(to);
    _mm256_stream_si256(line, _mm256_set_m128i(vectors[1].packed(kType), vectors[0].packed(kType)));
    _mm256_stream_si256(line + 1,
                        _mm256_set_m128i(vectors[3].packed(kType), vectors[2].packed(kType)));
  }

  // Whether a half is not the rounding of its number, bit for bit.
  template <class Half>
  static HOST_DEVICE bool differ(const float* numbers, const Half* halves) {
    const __m128i rounded = load(numbers).packed(static_cast<Half*>(nullptr));
    const __m128i stored = _mm_loadu_si128(reinterpret_cast<const __m128i*>(halves));
    return _mm_movemask_epi8(_mm_cmpeq_epi16(rounded, stored)) != 0xFFFF;
  }

  static HOST_DEVICE void finish_streams() { _mm_sfence(); }

  static HOST_DEVICE Vector join(const BFloat16* half, const uint16_t* remainder) {
    const __m256i lower = widened(remainder);
    const __m256i upper = _mm256_sub_epi32(widened(half), _mm256_srli_epi32(lower, 15));
    return Vector(_mm256_castsi256_ps(_mm256_or_si256(_mm256_slli_epi32(upper, 16), lower)));
  }

  HOST_DEVICE void split(BFloat16* half, uint16_t* remainder) const {
    const __m256i bits = canonical(_mm256_castps_si256(value), 0x7FC00000);
    const __m256i is_up = _mm256_and_si256(_mm256_srli_epi32(bits, 15), _mm256_set1_epi32(1));
    const __m256i upper = _mm256_add_epi32(_mm256_srli_epi32(bits, 16), is_up);
    const __m256i mask = _mm256_set1_epi32(0xFFFF);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(half), narrowed(_mm256_and_si256(upper, mask)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(remainder), narrowed(_mm256_and_si256(bits, mask)));
  }

  template <class Half>
  HOST_DEVICE Vector rounded() const {
    Half halves[kWidth];
    store(halves);
    return load(halves);
  }

  HOST_DEVICE Vector replaced_where_different(Vector a, Vector b, Vector other) const {
    const __m256i is_same =
        _mm256_cmpeq_epi32(_mm256_castps_si256(a.value), _mm256_castps_si256(b.value));
    return Vector(_mm256_blendv_ps(other.value, value, _mm256_castsi256_ps(is_same)));
  }

 private:
  static HOST_DEVICE __m256i widened(const void* from) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(from)));
  }

  // Eight numbers below 2^16 in 16 bits each.
  static HOST_DEVICE __m128i narrowed(__m256i numbers) {
    const __m256i packed = _mm256_packus_epi32(numbers, numbers);
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0xD8));
  }

  // The bits, but `nan` where this vector holds a NaN.
  HOST_DEVICE __m256i canonical(__m256i bits, int nan) const {
    const __m256 is_nan = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
    return _mm256_blendv_epi8(bits, _mm256_set1_epi32(nan), _mm256_castps_si256(is_nan));
  }

  HOST_DEVICE __m128i packed(const BFloat16*) const {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i is_odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i bias = _mm256_add_epi32(is_odd, _mm256_set1_epi32(0x7FFF));
    return narrowed(canonical(_mm256_srli_epi32(_mm256_add_epi32(bits, bias), 16), 0x7FC0));
  }

  HOST_DEVICE __m128i packed(const Float16*) const {
    return _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
};

HOST_DEVICE Vector operator+(Vector a, Vector b) { return Vector(_mm256_add_ps(a.value, b.value)); }

HOST_DEVICE Vector operator-(Vector a, Vector b) { return Vector(_mm256_sub_ps(a.value, b.value)); }

HOST_DEVICE Vector operator*(Vector a, Vector b) { return Vector(_mm256_mul_ps(a.value, b.value)); }

HOST_DEVICE Vector operator/(Vector a, Vector b) { return Vector(_mm256_div_ps(a.value, b.value)); }

HOST_DEVICE Vector multiply_add(Vector a, Vector b, Vector c) {
  return Vector(_mm256_fmadd_ps(a.value, b.value, c.value));
}

HOST_DEVICE Vector square_root(Vector a) { return Vector(_mm256_sqrt_ps(a.value)); }

// Minimum and maximum return their second operand if one of the two is a NaN.
HOST_DEVICE Vector clamp(Vector a, Vector bound) {
  const __m256 least = _mm256_xor_ps(bound.value, _mm256_set1_ps(-0.0f));
  return Vector(_mm256_max_ps(least, _mm256_min_ps(bound.value, a.value)));
}

HOST_DEVICE Vector maximum_of(Vector a, Vector b) {
  return Vector(_mm256_max_ps(a.value, b.value));
}

HOST_DEVICE Vector power_of_two(Vector shifted) {
  return Vector(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(shifted.value), 23)));
}

HOST_DEVICE Vector zero_below(Vector value, Vector x, Vector bound) {
  return Vector(_mm256_andnot_ps(_mm256_cmp_ps(x.value, bound.value, _CMP_LT_OQ), value.value));
}

}  // namespace lightning_mp::cpu::avx2
