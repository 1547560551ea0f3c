// The operations of csrc/bind/cuda_library.cpp for tensors on the CPU, in a namespace of their own,
// and what they need of a CUDA device.
#include <torch/csrc/stable/library.h>

#include "bind/cuda_calls.h"
#include "bind/cuda_stream.h"

namespace lightning_mp::bind {

cuda::StreamHandle current_cuda_stream(int32_t) { return nullptr; }

bool has_cuda_devices() { return false; }

}  // namespace lightning_mp::bind

STABLE_TORCH_LIBRARY_IMPL(lightning_mp_shim, CPU, library) {
  lightning_mp::bind::register_cuda_calls(library);
}
