// The order in which squares are summed: part of the result, so the same on every backend.
//
// A block of kNormBlock elements has kNormLanes sums in FP32: element i belongs to lane
// i % kNormLanes, each lane adds in order, and sum_lanes() halves them. A block whose sum
// overflowed or may have lost small squares is summed again in the same way, with lanes in double.
// The sums of the blocks of a chunk are added in order, in double; a chunk never spans two tensors.
// The sums of all chunks are added by kPartialLanes strided lanes, in double, which are then
// halved.
#pragma once

#include <stdint.h>

#include "common/macros.h"
#include "functors/half.h"
#include "functors/scalar_math.h"

namespace lightning_mp {

constexpr int kNormLanes = 64;
constexpr int64_t kNormBlock = 4096;
constexpr int64_t kNormChunk = 65536;
constexpr int kPartialLanes = 256;

// Adds lanes[width ..] onto lanes[0 ..] for width = count / 2, count / 4, ..., 1.
template <class Sum>
HOST_DEVICE Sum sum_lanes(Sum* lanes, int count) {
  for (int width = count / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

// Whether a block's FP32 sum has to be made again in double. A sum of squares below this bound can
// have lost a share of them to underflow; a sum of 0 needs it only if an element is not 0.
HOST_DEVICE bool is_doubtful_sum(float sum) { return !(sum < 3.0e38f) || sum < 1.0e-30f; }

HOST_DEVICE double add_square(float value, double sum) {
  // The product of two floats is exact in double.
  return sum + static_cast<double>(value) * static_cast<double>(value);
}

// The sum of the sums of chunks.
HOST_DEVICE double sum_partials(const double* partials, int64_t count) {
  double lanes[kPartialLanes] = {};
  for (int64_t i = 0; i < count; ++i) lanes[i % kPartialLanes] += partials[i];
  return sum_lanes(lanes, kPartialLanes);
}

// The norm of the unscaled gradients, and the factor that unscales and clips them. Each rounding is
// that of torch.nn.utils.clip_grad_norm_ on a float32 norm.
struct NormAndFactor {
  float norm;
  float factor;
};

HOST_DEVICE NormAndFactor norm_and_factor(double sum_of_squares, float inv_scale, bool has_max_norm,
                                          float max_norm) {
  const float norm =
      static_cast<float>(square_root(sum_of_squares) * static_cast<double>(inv_scale));
  if (!has_max_norm) return NormAndFactor{norm, inv_scale};
  const float coefficient = (1.0f / (norm + 1e-6f)) * max_norm;
  return NormAndFactor{norm, inv_scale * (coefficient > 1.0f ? 1.0f : coefficient)};
}

}  // namespace lightning_mp
