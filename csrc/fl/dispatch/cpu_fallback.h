// An operator of a device with memory of its own, computed by the CPU: copies in, and back.
#pragma once

#include "fl/dispatch/alias.h"
#include "fl/dispatch/operator_info.h"

namespace lightning_mp::fl {

class CpuCall {
 public:
  CpuCall(OperatorInfo& info, const Device& device, torch::jit::Stack* stack);

  void run(const c10::OperatorHandle& op);

 private:
  struct CopiedArgument {
    at::Tensor original;
    at::Tensor copy;
    bool is_written;
  };

  void replace(c10::IValue& value, Argument argument);
  at::Tensor to_cpu(const at::Tensor& tensor, bool is_written);
  void check_written(const at::Tensor& tensor, bool is_written) const;
  void write_back(const CopiedArgument& argument);
  at::Tensor to_device(const at::Tensor& result);
  void wrap_results();

  OperatorInfo& info_;
  const Device& device_;
  torch::jit::Stack* const stack_;
  int64_t num_copied_bytes_ = 0;
  c10::SmallVector<CopiedArgument, 8> arguments_;
  c10::SmallVector<at::Tensor, 2> foreign_;  // tensors of the CPU among the arguments
};

}  // namespace lightning_mp::fl
