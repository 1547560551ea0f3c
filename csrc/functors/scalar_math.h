// What the rules are written in, for one float. Vector types have functions of the same names.
#pragma once

#include "common/macros.h"

namespace lightning_mp {

HOST_DEVICE float multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

HOST_DEVICE float square_root(float value) { return __builtin_sqrtf(value); }

// A NaN stays one.
HOST_DEVICE float clamp(float value, float bound) {
  const float below = value > bound ? bound : value;
  return below < -bound ? -bound : below;
}

HOST_DEVICE double square_root(double value) { return __builtin_sqrt(value); }

HOST_DEVICE double power(double base, double exponent) {
#if defined(__CUDA_ARCH__)
  return pow(base, exponent);
#else
  return __builtin_pow(base, exponent);
#endif
}

}  // namespace lightning_mp
