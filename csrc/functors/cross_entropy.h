// The cross-entropy of one row of logits, and its gradient.
//
// With weights w, smoothing s, target t and C classes, the class c has the weight
// a(c) = (1 - s) w(t) [c = t] + s w(c) / C, and the loss is sum(a(c) (log_sum_exp - x(c))). No part
// of it is a difference of large numbers: all are distances from the largest logit.
//
// The order of a sum over a row is part of its result. A block of kTermBlock elements has
// kNormLanes sums in FP32: element i belongs to lane i % kNormLanes, each lane adds in order, and
// sum_lanes() halves them. The sums of blocks are added in order, in double.
#pragma once

#include <stdint.h>

#include "common/cross_entropy.h"
#include "common/macros.h"
#include "functors/exponential.h"
#include "functors/norm.h"

namespace lightning_mp {

constexpr int64_t kTermBlock = 1024;

// What is added up: the distance of a logit from the largest one is below, weight() is its factor.
// Each takes a float or a vector of floats.
struct ExponentialTerm {
  static constexpr bool kIsWeighted = false;

  template <class V>
  static HOST_DEVICE V of(V logit, V maximum, V) {
    return exponential(logit - maximum);
  }
};

template <bool kHasWeights>
struct DistanceTerm {
  static constexpr bool kIsWeighted = kHasWeights;

  template <class V>
  static HOST_DEVICE V of(V logit, V maximum, V weight) {
    return kHasWeights ? weight * (maximum - logit) : maximum - logit;
  }
};

struct WeightTerm {
  static constexpr bool kIsWeighted = true;

  template <class V>
  static HOST_DEVICE V of(V, V, V weight) {
    return weight;
  }
};

// The sums of the terms above over a row; the last two count with smoothing only.
struct RowSums {
  double exponentials;
  double distances;
  double weights;
};

// What is asked of the target of a row.
struct RowTarget {
  float logit;
  float weight;
};

struct RowLoss {
  float loss;
  RowStatistics statistics;
};

HOST_DEVICE float canonical_nan() { return float_of_bits(0x7FC00000u); }

HOST_DEVICE float narrow_sum(double value) {
  return value == value ? static_cast<float>(value) : canonical_nan();
}

HOST_DEVICE RowLoss row_loss(const CrossEntropyInputs& inputs, const RowTarget& target,
                             float maximum, const RowSums& sums) {
  const double log_sum = logarithm(sums.exponentials);
  const double target_weight =
      static_cast<double>(inputs.target_share) * static_cast<double>(target.weight);
  const double distance = static_cast<double>(maximum) - static_cast<double>(target.logit);
  double loss = target_weight * (distance + log_sum);
  double weight = target_weight;
  if (inputs.uniform_share != 0.0f) {
    const double share = static_cast<double>(inputs.uniform_share);
    loss += share * (sums.distances + sums.weights * log_sum);
    weight += share * sums.weights;
  }
  return RowLoss{narrow_sum(loss),
                 RowStatistics{maximum, narrow_sum(sums.exponentials), narrow_sum(weight)}};
}

// The gradient of class c is exp(x(c) - maximum) * factor - offset * w(c), but for the target.
struct RowGradient {
  float maximum;
  float factor;
  float offset;
};

// `gradient` is that of the loss of the row. A factor that is NaN stands for a row of NaNs.
HOST_DEVICE RowGradient row_gradient(const CrossEntropyInputs& inputs, const RowStatistics& row,
                                     float gradient) {
  const float offset = inputs.uniform_share == 0.0f ? 0.0f : gradient * inputs.uniform_share;
  return RowGradient{row.maximum, gradient * row.weight / row.sum, offset};
}

// The gradient of the target.
HOST_DEVICE float target_gradient(const CrossEntropyInputs& inputs, const RowTarget& target,
                                  const RowStatistics& row, float gradient) {
  // probability - 1: the difference is exact where it is small, that is for a sure prediction.
  const double sum = static_cast<double>(row.sum);
  const double error = (static_cast<double>(exponential(target.logit - row.maximum)) - sum) / sum;
  const double share =
      static_cast<double>(inputs.target_share) + static_cast<double>(inputs.uniform_share);
  const double weight = static_cast<double>(row.weight);
  const double rest = weight - share * static_cast<double>(target.weight);
  return static_cast<float>(static_cast<double>(gradient) * (weight * error + rest));
}

// `negative_offset` is -offset * w(c).
template <class V>
HOST_DEVICE V class_gradient(V logit, V maximum, V factor, V negative_offset) {
  return multiply_add(exponential(logit - maximum), factor, negative_offset);
}

}  // namespace lightning_mp
