// Stochastic gradient descent, one element at a time.
#pragma once

#include "common/macros.h"
#include "common/parameters.h"
#include "functors/scalar_math.h"

namespace lightning_mp {

// What an element needs; the same for all elements of a call.
struct SgdScalars {
  // Unscaling, clipping by norm and the sign of `maximize`.
  float gradient_factor;
  float clip_value;
  float lr;
  float weight_decay;
  float momentum;
  float one_minus_dampening;
  bool is_first;
};

HOST_DEVICE SgdScalars sgd_scalars(const SgdParameters& parameters, double lr, float factor) {
  SgdScalars scalars;
  scalars.gradient_factor = parameters.maximize ? -factor : factor;
  scalars.clip_value = parameters.clip_value;
  scalars.lr = static_cast<float>(lr);
  scalars.weight_decay = static_cast<float>(parameters.weight_decay);
  scalars.momentum = static_cast<float>(parameters.momentum);
  scalars.one_minus_dampening = static_cast<float>(1.0 - parameters.dampening);
  scalars.is_first = parameters.is_first;
  return scalars;
}

// The gradient as torch.optim.SGD sees it: clipped, with its decay.
template <class Value>
HOST_DEVICE Value sgd_gradient(Value gradient, Value weight, const SgdScalars& scalars) {
  gradient = clamp(gradient * Value(scalars.gradient_factor), Value(scalars.clip_value));
  // Without decay a weight that is not finite must not reach the gradient.
  if (scalars.weight_decay == 0.0f) return gradient;
  return multiply_add(Value(scalars.weight_decay), weight, gradient);
}

struct PlainSgdRule {
  using Scalars = SgdScalars;
  using State = float;
  static constexpr int kNumStates = 0;

  template <class Value>
  static HOST_DEVICE void step(Value gradient, Value& weight, Value*, const SgdScalars& scalars) {
    weight = multiply_add(Value(-scalars.lr), sgd_gradient(gradient, weight, scalars), weight);
  }
};

template <bool kIsNesterov>
struct MomentumSgdRule {
  using Scalars = SgdScalars;
  using State = float;
  static constexpr int kNumStates = 1;

  template <class Value>
  static HOST_DEVICE void step(Value gradient, Value& weight, Value* states,
                               const SgdScalars& scalars) {
    gradient = sgd_gradient(gradient, weight, scalars);
    Value& buffer = states[0];
    // A first buffer is the gradient, undamped; what was in it, even a NaN, does not count.
    buffer = scalars.is_first ? gradient
                              : multiply_add(Value(scalars.one_minus_dampening), gradient,
                                             Value(scalars.momentum) * buffer);
    const Value direction =
        kIsNesterov ? multiply_add(Value(scalars.momentum), buffer, gradient) : buffer;
    weight = multiply_add(Value(-scalars.lr), direction, weight);
  }
};

}  // namespace lightning_mp
