#include "bind/cuda_call.h"
#include "bind/cuda_calls.h"
#include "bind/cuda_tables.h"
#include "functors/norm.h"

namespace lightning_mp::bind {
namespace {

// The sums of squares of the chunks of a table, and what they were made of.
struct ChunkSums {
  UploadedTable uploaded;
  Tensor memory;
  double* sums;
};

ChunkSums sums_of_chunks(const RowTable& rows, int role, FoundInf found_inf, const CudaCall& call) {
  UploadedTable uploaded = upload_rows(rows, kNormChunk, {}, call);
  const Tensor memory =
      call.allocate(uploaded.table.num_chunks, torch::headeronly::ScalarType::Double);
  auto* sums = static_cast<double*>(memory.mutable_data_ptr());
  call.check(cuda::sum_of_squares(uploaded.table, role, sums, found_inf, call.stream()));
  return {uploaded, memory, sums};
}

}  // namespace

void run_on_cuda(const GradientStatsCall& call) {
  const CudaCall cuda_call("gradient_stats_", call.norm);
  const ChunkSums chunks = sums_of_chunks(call.table, kGradient, call.found_inf, cuda_call);
  const cuda::NormRequest request = {
      call.inv_scale ? call.inv_scale->const_data_ptr<float>() : nullptr, call.max_norm.has_value(),
      static_cast<float>(call.max_norm.value_or(0.0))};
  cuda_call.check(cuda::gradient_stats(chunks.sums, chunks.uploaded.table.num_chunks, request,
                                       call.norm.mutable_data_ptr<float>(),
                                       call.factor.mutable_data_ptr<float>(), cuda_call.stream()));
}

void run_on_cuda(const L2NormCall& call) {
  const CudaCall cuda_call("l2_norm", call.total);
  const ChunkSums chunks = sums_of_chunks(call.table, kInput, {}, cuda_call);
  float* each = call.each.numel() > 0 ? call.each.mutable_data_ptr<float>() : nullptr;
  cuda_call.check(cuda::norms(chunks.uploaded.table, chunks.sums,
                              call.total.mutable_data_ptr<float>(), each, cuda_call.stream()));
}

}  // namespace lightning_mp::bind
