// exp and log, the same bit for bit on every backend: no library has them.
#pragma once

#include <stdint.h>

#include "common/macros.h"
#include "functors/half.h"
#include "functors/scalar_math.h"

namespace lightning_mp {

// Results below 2^-126, which have lost bits, are 0 instead.
constexpr float kLeastExponent = -87.3f;

// exp(x) of x <= 0, within 1 unit in the last place; 0 below kLeastExponent. NaN stays NaN.
// V is a float or a vector of floats.
template <class V>
HOST_DEVICE V exponential(V x) {
  // x = n * ln(2) + r with whole n and |r| <= ln(2) / 2. The addition of 1.5 * 2^23 rounds to whole
  // numbers, and 127 more make the last bits of the sum the exponent field of 2^n.
  const V shift(12583039.0f);
  const V shifted = multiply_add(x, V(0x1.715476p+0f), shift);
  const V n = shifted - shift;
  V r = multiply_add(n, V(-0x1.62e430p-1f), x);
  r = multiply_add(n, V(0x1.05c610p-29f), r);
  // 1 + r + r^2 * q(r), where q has the least largest error.
  V p = multiply_add(V(0x1.6a23cep-10f), r, V(0x1.123a20p-7f));
  p = multiply_add(p, r, V(0x1.5558f2p-5f));
  p = multiply_add(p, r, V(0x1.555492p-3f));
  p = multiply_add(p, r, V(0x1.fffffcp-2f));
  p = multiply_add(p, r, V(1.0f));
  p = multiply_add(p, r, V(1.0f));
  return zero_below(p * power_of_two(shifted), x, V(kLeastExponent));
}

// log(x) of finite x >= 1, within 2^-44 of itself. NaN stays NaN.
HOST_DEVICE double logarithm(double x) {
  if (!(x >= 1.0)) return x;
  uint64_t bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  // x = 2^n * m with m in [sqrt(1/2), sqrt(2)), exactly.
  int64_t n = static_cast<int64_t>(bits >> 52) - 1023;
  bits = (bits & 0xFFFFFFFFFFFFFull) | 0x3FF0000000000000ull;
  double m;
  __builtin_memcpy(&m, &bits, sizeof(m));
  if (m >= 1.4142135623730951) {
    m *= 0.5;
    ++n;
  }
  // log(m) = 2 * artanh((m - 1) / (m + 1)), whose series ends early: |z| < 0.172.
  const double z = (m - 1.0) / (m + 1.0);
  const double square = z * z;
  double series = 1.0 / 15.0;
  series = series * square + 1.0 / 13.0;
  series = series * square + 1.0 / 11.0;
  series = series * square + 1.0 / 9.0;
  series = series * square + 1.0 / 7.0;
  series = series * square + 1.0 / 5.0;
  series = series * square + 1.0 / 3.0;
  series = series * square + 1.0;
  return static_cast<double>(n) * 0.6931471805599453 + 2.0 * z * series;
}

}  // namespace lightning_mp
