#include "cuda/cross_entropy.cuh"

#include "cuda/launch.cuh"

namespace lightning_mp::cuda {

int cross_entropy_forward(const CrossEntropyInputs& inputs, float* losses,
                          RowStatistics* statistics, StreamHandle stream) {
  if (inputs.dtype == DType::kBFloat16) {
    LAUNCH(cross_entropy_forward_kernel<BFloat16>, grid_for(inputs.num_rows), kRowThreads,
           stream_of(stream), inputs, losses, statistics);
  } else {
    LAUNCH(cross_entropy_forward_kernel<Float16>, grid_for(inputs.num_rows), kRowThreads,
           stream_of(stream), inputs, losses, statistics);
  }
  return last_error();
}

int cross_entropy_backward(const CrossEntropyInputs& inputs, const RowStatistics* statistics,
                           const float* gradients, void* results, StreamHandle stream) {
  if (inputs.dtype == DType::kBFloat16) {
    LAUNCH(cross_entropy_backward_kernel<BFloat16>, grid_for(inputs.num_rows), kRowThreads,
           stream_of(stream), inputs, statistics, gradients, static_cast<BFloat16*>(results));
  } else {
    LAUNCH(cross_entropy_backward_kernel<Float16>, grid_for(inputs.num_rows), kRowThreads,
           stream_of(stream), inputs, statistics, gradients, static_cast<Float16*>(results));
  }
  return last_error();
}

}  // namespace lightning_mp::cuda
