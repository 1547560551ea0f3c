// What is computed once for a step, not by every thread.
#pragma once

#include "cuda/step.cuh"

namespace lightning_mp::cuda {

// Counts the step of each row, and makes its scalars: powers and roots in double, once.
static __global__ void __launch_bounds__(kStepThreads)
    prepare_adam_kernel(float* const* steps, int64_t num_rows, AdamParameters parameters, double lr,
                        const float* lr_tensor, const float* factor, const float* found_inf,
                        AdamScalars* scalars) {
  if (is_skipped(found_inf)) return;
  const double rate = lr_tensor == nullptr ? lr : static_cast<double>(*lr_tensor);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; row < num_rows;
       row += stride) {
    float* counter = steps[row];
    ASSUME_GLOBAL(counter);
    const float step = *counter + 1.0f;
    *counter = step;
    scalars[row] = adam_scalars(parameters, rate, static_cast<double>(step),
                                factor == nullptr ? 1.0f : *factor);
  }
}

}  // namespace lightning_mp::cuda
