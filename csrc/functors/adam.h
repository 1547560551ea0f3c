// Adam and AdamW, one element at a time.
#pragma once

#include "common/macros.h"
#include "common/parameters.h"
#include "functors/scalar_math.h"
#include "functors/stochastic_rounding.h"

namespace lightning_mp {

// What an element needs; the same for all elements of a row.
struct AdamScalars {
  // Unscaling, clipping by norm and the sign of `maximize`.
  float gradient_factor;
  float clip_value;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float eps;
  // AdamW: 1 - lr * weight_decay. Adam: weight_decay.
  float decay;
  // lr / (1 - beta1^step)
  float step_size;
  // 1 / sqrt(1 - beta2^step)
  float inverse_root_correction;
  // Of the roundings of bfloat16 moments.
  RandomKey rounding;
};

// In double precision, once per row. `step` counts from 1.
HOST_DEVICE AdamScalars adam_scalars(const AdamParameters& parameters, double lr, double step,
                                     float factor) {
  AdamScalars scalars;
  scalars.gradient_factor = parameters.maximize ? -factor : factor;
  scalars.clip_value = parameters.clip_value;
  scalars.one_minus_beta1 = static_cast<float>(1.0 - parameters.beta1);
  scalars.beta2 = static_cast<float>(parameters.beta2);
  scalars.one_minus_beta2 = static_cast<float>(1.0 - parameters.beta2);
  scalars.eps = static_cast<float>(parameters.eps);
  scalars.decay = static_cast<float>(parameters.is_decoupled ? 1.0 - lr * parameters.weight_decay
                                                             : parameters.weight_decay);
  scalars.step_size = static_cast<float>(lr / (1.0 - power(parameters.beta1, step)));
  scalars.inverse_root_correction =
      static_cast<float>(1.0 / square_root(1.0 - power(parameters.beta2, step)));
  scalars.rounding = random_key(parameters.seed, static_cast<float>(step));
  return scalars;
}

// A rule turns one gradient, weight and its states into the next. Value is float or a vector type.
template <bool kIsDecoupled>
struct AdamRule {
  using Scalars = AdamScalars;
  // How states are stored.
  using State = float;
  static constexpr int kNumStates = 2;

  template <class Value>
  static HOST_DEVICE void step(Value gradient, Value& weight, Value* states,
                               const AdamScalars& scalars) {
    Value& mean = states[0];
    Value& mean_square = states[1];
    gradient = clamp(gradient * Value(scalars.gradient_factor), Value(scalars.clip_value));
    if constexpr (kIsDecoupled) {
      weight = weight * Value(scalars.decay);
    } else {
      gradient = multiply_add(Value(scalars.decay), weight, gradient);
    }
    mean = multiply_add(Value(scalars.one_minus_beta1), gradient - mean, mean);
    mean_square = multiply_add(Value(scalars.one_minus_beta2) * gradient, gradient,
                               Value(scalars.beta2) * mean_square);
    const Value denominator = multiply_add(
        square_root(mean_square), Value(scalars.inverse_root_correction), Value(scalars.eps));
    weight = weight - (Value(scalars.step_size) * mean) / denominator;
  }
};

}  // namespace lightning_mp
