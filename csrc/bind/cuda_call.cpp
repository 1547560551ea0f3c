#include "bind/cuda_call.h"

#include <torch/csrc/stable/ops.h>

#include "bind/cuda_stream.h"

namespace lightning_mp::bind {

CudaCall::CudaCall(const char* op, const Tensor& tensor)
    : op_(op), tensor_(tensor), device_index_(tensor.get_device_index()) {
  if (has_cuda_devices()) guard_.emplace(device_index_);
  check(cuda::use_device(device_index_));
  stream_ = current_cuda_stream(device_index_);
}

void CudaCall::check(int error) const {
  STD_TORCH_CHECK(error == 0, "lightning_mp::", op_,
                  ": a kernel did not start: ", cuda::error_text(error));
}

Tensor CudaCall::allocate(int64_t numel, torch::headeronly::ScalarType type) const {
  return torch::stable::new_empty(tensor_, {numel}, type);
}

}  // namespace lightning_mp::bind
