// A "vector" of one float, for machines without anything better.
#pragma once

#include "common/macros.h"
#include "functors/half.h"
#include "functors/scalar_math.h"
#include "functors/split_master.h"

namespace lightning_mp::cpu::base {

struct Vector {
  static constexpr int kWidth = 1;
  // Whether stream_line() goes past the caches.
  static constexpr bool kCanStream = false;
  // Vectors that differ() takes at once.
  static constexpr int kPair = 1;

  float value;

  Vector() = default;

  HOST_DEVICE explicit Vector(float number) : value(number) {}

  template <class T>
  static HOST_DEVICE Vector load(const T* from) {
    return Vector(to_float(*from));
  }

  template <class T>
  HOST_DEVICE void store(T* to) const {
    *to = from_float<T>(value);
  }

  template <class T>
  static HOST_DEVICE void stream_line(const Vector*, T*) {}

  // Whether a half is not the rounding of its number, bit for bit.
  template <class T>
  static HOST_DEVICE bool differ(const float* numbers, const T* halves) {
    return from_float<T>(*numbers).bits != halves->bits;
  }

  static HOST_DEVICE void finish_streams() {}

  static HOST_DEVICE Vector join(const BFloat16* half, const uint16_t* remainder) {
    return Vector(join_master(*half, *remainder));
  }

  HOST_DEVICE void split(BFloat16* half, uint16_t* remainder) const {
    const SplitMaster master = split_master(value);
    *half = master.half;
    *remainder = master.remainder;
  }

  // The number that a stored half would be loaded as.
  template <class T>
  HOST_DEVICE Vector rounded() const {
    return Vector(to_float(from_float<T>(value)));
  }

  // This, but `other` where two numbers differ in any bit.
  HOST_DEVICE Vector replaced_where_different(Vector a, Vector b, Vector other) const {
    return bits_of(a.value) == bits_of(b.value) ? *this : other;
  }
};

HOST_DEVICE Vector operator+(Vector a, Vector b) { return Vector(a.value + b.value); }

HOST_DEVICE Vector operator-(Vector a, Vector b) { return Vector(a.value - b.value); }

HOST_DEVICE Vector operator*(Vector a, Vector b) { return Vector(a.value * b.value); }

HOST_DEVICE Vector operator/(Vector a, Vector b) { return Vector(a.value / b.value); }

HOST_DEVICE Vector multiply_add(Vector a, Vector b, Vector c) {
  return Vector(lightning_mp::multiply_add(a.value, b.value, c.value));
}

HOST_DEVICE Vector square_root(Vector a) { return Vector(lightning_mp::square_root(a.value)); }

HOST_DEVICE Vector clamp(Vector a, Vector bound) {
  return Vector(lightning_mp::clamp(a.value, bound.value));
}

HOST_DEVICE Vector maximum_of(Vector a, Vector b) {
  return Vector(lightning_mp::maximum_of(a.value, b.value));
}

HOST_DEVICE Vector power_of_two(Vector shifted) {
  return Vector(lightning_mp::power_of_two(shifted.value));
}

HOST_DEVICE Vector zero_below(Vector value, Vector x, Vector bound) {
  return Vector(lightning_mp::zero_below(value.value, x.value, bound.value));
}

}  // namespace lightning_mp::cpu::base
