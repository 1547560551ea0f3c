#include "bind/cuda_calls.h"

#include "bind/cuda_call.h"
#include "bind/cuda_tables.h"

namespace lightning_mp::bind {
namespace {

const float* data_or_null(const std::optional<Tensor>& scalar) {
  return scalar ? scalar->const_data_ptr<float>() : nullptr;
}

cuda::StepScalars step_scalars(const StepArguments& arguments) {
  return {data_or_null(arguments.factor), data_or_null(arguments.found_inf),
          data_or_null(arguments.lr_tensor), arguments.lr};
}

}  // namespace

bool run_on_cuda(const AdamCall& call) {
  if (call.table.rows.empty()) return false;
  const CudaCall cuda_call(call.arguments.op, tensor_of(call.arguments.weights[0]));
  const UploadedTable uploaded = upload_rows(call.table, cuda::kChunk, call.steps, cuda_call);
  const int64_t num_rows = uploaded.table.num_rows;
  const int64_t num_bytes = num_rows * static_cast<int64_t>(sizeof(AdamScalars));
  const Tensor memory = cuda_call.allocate(num_bytes, torch::headeronly::ScalarType::Byte);
  auto* scalars = static_cast<AdamScalars*>(memory.mutable_data_ptr());
  const cuda::StepScalars inputs = step_scalars(call.arguments);
  cuda_call.check(cuda::prepare_adam(uploaded.steps, num_rows, call.parameters, inputs, scalars,
                                     cuda_call.stream()));
  // All rows have moments of one type.
  const bool is_rounded = call.table.rows[0].dtypes[kFirstState] == DType::kBFloat16;
  const auto step = is_rounded ? cuda::rounded_adam_step : cuda::adam_step;
  cuda_call.check(step(uploaded.table, scalars, call.parameters.is_decoupled, inputs.found_inf,
                       call.arguments.options, cuda_call.stream()));
  return true;
}

bool run_on_cuda(const SgdCall& call) {
  if (call.table.rows.empty()) return false;
  const CudaCall cuda_call(call.arguments.op, tensor_of(call.arguments.weights[0]));
  const UploadedTable uploaded = upload_rows(call.table, cuda::kChunk, {}, cuda_call);
  cuda_call.check(cuda::sgd_step(uploaded.table, call.parameters, step_scalars(call.arguments),
                                 call.arguments.options, cuda_call.stream()));
  return true;
}

}  // namespace lightning_mp::bind
