// What the rules are written in, for one float. Vector types have functions of the same names.
#pragma once

#include <stdint.h>

#include "common/macros.h"
#include "functors/half.h"

namespace lightning_mp {

HOST_DEVICE float multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

HOST_DEVICE float square_root(float value) { return __builtin_sqrtf(value); }

// A NaN stays one.
HOST_DEVICE float clamp(float value, float bound) {
  const float below = value > bound ? bound : value;
  return below < -bound ? -bound : below;
}

// The larger number; `b` if `a` is NaN.
HOST_DEVICE float maximum_of(float a, float b) { return a > b ? a : b; }

// The float whose exponent field is the last bits of another.
HOST_DEVICE float power_of_two(float shifted) { return float_of_bits(bits_of(shifted) << 23); }

// 0 where x < bound, elsewhere `value`.
HOST_DEVICE float zero_below(float value, float x, float bound) { return x < bound ? 0.0f : value; }

HOST_DEVICE double square_root(double value) { return __builtin_sqrt(value); }

HOST_DEVICE double power(double base, double exponent) {
#if defined(__CUDA_ARCH__)
  return pow(base, exponent);
#else
  return __builtin_pow(base, exponent);
#endif
}

}  // namespace lightning_mp
