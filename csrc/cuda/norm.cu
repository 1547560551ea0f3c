#include "cuda/norm.cuh"

#include "cuda/launch.cuh"

namespace lightning_mp::cuda {

int sum_of_squares(const DeviceTable& table, int role, double* partials, FoundInf found_inf,
                   StreamHandle stream) {
  if (table.num_chunks == 0) return 0;
  LAUNCH(sum_of_squares_kernel, grid_for(table.num_chunks), kNormThreads, stream_of(stream), table,
         role, partials, found_inf);
  return last_error();
}

int gradient_stats(const double* partials, int64_t num_partials, const NormRequest& request,
                   float* norm, float* factor, StreamHandle stream) {
  LAUNCH(gradient_stats_kernel, 1, kPartialLanes, stream_of(stream), partials, num_partials,
         request.inv_scale, request.has_max_norm, request.max_norm, norm, factor);
  return last_error();
}

int norms(const DeviceTable& table, const double* partials, float* total, float* each,
          StreamHandle stream) {
  const int64_t num_results = 1 + (each == nullptr ? 0 : table.num_rows);
  LAUNCH(norms_kernel, grid_for(num_results), kPartialLanes, stream_of(stream), table, partials,
         total, each);
  return last_error();
}

}  // namespace lightning_mp::cuda
