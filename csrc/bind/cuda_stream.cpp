#include "bind/cuda_stream.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/headeronly/util/shim_utils.h>

// In libtorch_cuda alone: a weak symbol, so that the library loads with a torch without CUDA too.
extern "C" __attribute__((weak)) AOTITorchError
aoti_torch_get_current_cuda_stream(int32_t device_index, void** ret_stream);

namespace lightning_mp::bind {

cuda::StreamHandle current_cuda_stream(int32_t device_index) {
  STD_TORCH_CHECK(aoti_torch_get_current_cuda_stream != nullptr,
                  "lightning_mp: this torch has no CUDA; install one that has");
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device_index, &stream));
  return stream;
}

bool has_cuda_devices() { return true; }

}  // namespace lightning_mp::bind
