// The operations of csrc/bind/cuda_library.cpp for tensors on the CPU, in a namespace of their own,
// and what they need of a CUDA device.
#include <torch/csrc/stable/library.h>

#include "bind/cuda_steps.h"
#include "bind/cuda_stream.h"

namespace lightning_mp::bind {

cuda::StreamHandle current_cuda_stream(int32_t) { return nullptr; }

bool has_cuda_devices() { return false; }

STABLE_TORCH_LIBRARY_IMPL(lightning_mp_shim, CPU, library) {
  library.impl("gradient_stats_", TORCH_BOX(&gradient_stats<run_on_cuda>));
  library.impl("adam_step_", TORCH_BOX(&adam_step<run_on_cuda>));
  library.impl("sgd_step_", TORCH_BOX(&sgd_step<run_on_cuda>));
}

}  // namespace lightning_mp::bind
