// torch's current stream on a CUDA device. csrc/shim has another implementation.
#pragma once

#include <stdint.h>

#include "cuda/launch.h"

namespace lightning_mp::bind {

// Throws for a torch without CUDA.
cuda::StreamHandle current_cuda_stream(int32_t device_index);

// Whether the tensors are on a CUDA device; with the shim they are on the CPU.
bool has_cuda_devices();

}  // namespace lightning_mp::bind
