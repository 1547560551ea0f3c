// Half types and their conversions, bit by bit as x86 instructions do them.
#pragma once

#include <stdint.h>

#include "common/macros.h"

namespace lightning_mp {

struct BFloat16 {
  uint16_t bits;
};

struct Float16 {
  uint16_t bits;
};

constexpr uint32_t kInfinityBits = 0x7F800000u;
constexpr uint32_t kMagnitudeMask = 0x7FFFFFFFu;

HOST_DEVICE uint32_t bits_of(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  return bits;
}

HOST_DEVICE float float_of_bits(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

HOST_DEVICE bool is_nan_bits(uint32_t bits) { return (bits & kMagnitudeMask) > kInfinityBits; }

HOST_DEVICE bool is_finite(float value) {
  return (bits_of(value) & kInfinityBits) != kInfinityBits;
}

// To nearest, ties to even; subnormals are kept and every NaN becomes the same one, as in torch.
HOST_DEVICE BFloat16 round_to_bfloat16(float value) {
  const uint32_t bits = bits_of(value);
  if (is_nan_bits(bits)) return BFloat16{0x7FC0};
  return BFloat16{static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
}

// To nearest, ties to even; a NaN stays quiet and keeps its sign and upper bits.
HOST_DEVICE Float16 round_to_float16(float value) {
  const uint32_t sign = (bits_of(value) >> 16) & 0x8000u;
  const uint32_t bits = bits_of(value) & kMagnitudeMask;
  uint32_t rounded;
  if (bits > kInfinityBits) {
    rounded = 0x7E00u | ((bits >> 13) & 0x3FFu);
  } else if (bits >= 0x477FF000u) {  // 65520 and above
    rounded = 0x7C00u;
  } else if (bits < 0x38800000u) {
    // A subnormal: at 0.5 a unit in the last place is 2^-24, so the addition rounds.
    rounded = bits_of(float_of_bits(bits) + 0.5f) - 0x3F000000u;
  } else {
    rounded = (bits + 0xFFFu + ((bits >> 13) & 1u) - 0x38000000u) >> 13;
  }
  return Float16{static_cast<uint16_t>(sign | rounded)};
}

HOST_DEVICE float to_float(float value) { return value; }

HOST_DEVICE float to_float(BFloat16 value) {
  return float_of_bits(static_cast<uint32_t>(value.bits) << 16);
}

HOST_DEVICE float to_float(Float16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t exponent = (value.bits >> 10) & 31u;
  const uint32_t mantissa = value.bits & 0x3FFu;
  if (exponent == 31) {
    const uint32_t quiet = mantissa ? 0x400000u : 0u;
    return float_of_bits(sign | kInfinityBits | quiet | (mantissa << 13));
  }
  if (exponent) return float_of_bits(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 5.9604644775390625e-8f;  // 2^-24, exact
  return float_of_bits(sign | bits_of(magnitude));
}

template <class T>
HOST_DEVICE T from_float(float value);

template <>
HOST_DEVICE float from_float<float>(float value) {
  return value;
}

template <>
HOST_DEVICE BFloat16 from_float<BFloat16>(float value) {
  return round_to_bfloat16(value);
}

template <>
HOST_DEVICE Float16 from_float<Float16>(float value) {
  return round_to_float16(value);
}

}  // namespace lightning_mp
