// Where an operation on a CUDA device runs.
#pragma once

#include <stdint.h>
#include <torch/csrc/stable/accelerator.h>

#include <optional>

#include "bind/tensor_handles.h"
#include "cuda/launch.h"

namespace lightning_mp::bind {

// Makes the device of a tensor the current one for as long as this lives, and knows torch's current
// stream there. Nothing waits for the device.
class CudaCall {
 public:
  CudaCall(const char* op, const Tensor& tensor);

  cuda::StreamHandle stream() const { return stream_; }

  int32_t device_index() const { return device_index_; }

  // Throws for an error of a launch.
  void check(int error) const;

  // Uninitialised memory on the device; it may be dropped while kernels of the stream still use it.
  Tensor allocate(int64_t numel, torch::headeronly::ScalarType type) const;

 private:
  const char* op_;
  Tensor tensor_;
  int32_t device_index_;
  std::optional<torch::stable::accelerator::DeviceGuard> guard_;
  cuda::StreamHandle stream_ = nullptr;
};

}  // namespace lightning_mp::bind
