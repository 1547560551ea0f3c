#include "bind/cuda_call.h"
#include "bind/cuda_calls.h"
#include "bind/cuda_tables.h"

namespace lightning_mp::bind {

void run_on_cuda(const ScaleCopyCall& call) {
  const CudaCall cuda_call("scale_copy_", call.scale);
  const UploadedTable uploaded = upload_rows(call.table, cuda::kChunk, {}, cuda_call);
  cuda_call.check(cuda::scale_copy(uploaded.table, call.scale.const_data_ptr<float>(),
                                   call.found_inf, cuda_call.stream()));
}

void run_on_cuda(const AxpbyCall& call) {
  const CudaCall cuda_call("axpby_", call.anchor);
  const UploadedTable uploaded = upload_rows(call.table, cuda::kChunk, {}, cuda_call);
  cuda_call.check(cuda::axpby(uploaded.table, call.a, call.b, call.found_inf, cuda_call.stream()));
}

void run_on_cuda(const SplitCall& call) {
  if (call.table.rows.empty()) return;
  const CudaCall cuda_call("split_", tensor_of(call.sources[0]));
  const UploadedTable uploaded = upload_rows(call.table, cuda::kChunk, {}, cuda_call);
  cuda_call.check(cuda::split(uploaded.table, cuda_call.stream()));
}

void run_on_cuda(const JoinCall& call) {
  if (call.table.rows.empty()) return;
  const CudaCall cuda_call("join_", tensor_of(call.halves[0]));
  const UploadedTable uploaded = upload_rows(call.table, cuda::kChunk, {}, cuda_call);
  cuda_call.check(cuda::join(uploaded.table, cuda_call.stream()));
}

void run_on_cuda(const UpdateScaleCall& call) {
  const CudaCall cuda_call("update_scale_", call.scale);
  const cuda::ScaleTensors tensors = {
      call.scale.mutable_data_ptr<float>(),
      call.growth_tracker.mutable_data_ptr<int32_t>(),
      call.hysteresis_tracker.mutable_data_ptr<int32_t>(),
      call.found_inf.const_data_ptr<float>(),
  };
  cuda_call.check(cuda::update_scale(tensors, call.parameters, cuda_call.stream()));
}

}  // namespace lightning_mp::bind
