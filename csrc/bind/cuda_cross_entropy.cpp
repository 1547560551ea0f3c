#include "bind/cuda_call.h"
#include "bind/cuda_calls.h"

namespace lightning_mp::bind {

void run_on_cuda(const CrossEntropyForwardCall& call) {
  const CudaCall cuda_call("cross_entropy_forward", call.logits);
  auto* statistics = static_cast<RowStatistics*>(call.statistics.mutable_data_ptr());
  cuda_call.check(cuda::cross_entropy_forward(call.inputs, call.losses.mutable_data_ptr<float>(),
                                              statistics, cuda_call.stream()));
}

void run_on_cuda(const CrossEntropyBackwardCall& call) {
  const CudaCall cuda_call("cross_entropy_backward", call.logits);
  const auto* statistics = static_cast<const RowStatistics*>(call.statistics.const_data_ptr());
  cuda_call.check(cuda::cross_entropy_backward(call.inputs, statistics,
                                               call.gradient.const_data_ptr<float>(),
                                               call.result.mutable_data_ptr(), cuda_call.stream()));
}

}  // namespace lightning_mp::bind
