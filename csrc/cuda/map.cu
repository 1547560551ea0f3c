#include "cuda/map.cuh"

#include "cuda/launch.cuh"

namespace lightning_mp::cuda {

int scale_copy(const DeviceTable& table, const float* scale, FoundInf found_inf,
               StreamHandle stream) {
  if (table.num_chunks == 0) return 0;
  const ScaleMap map = {scale};
  LAUNCH(map_kernel<ScaleMap>, grid_for(table.num_chunks), kMapThreads, stream_of(stream), table,
         map, found_inf);
  return last_error();
}

int axpby(const DeviceTable& table, float a, float b, FoundInf found_inf, StreamHandle stream) {
  if (table.num_chunks == 0) return 0;
  const AxpbyMap map = {a, b};
  LAUNCH(map_kernel<AxpbyMap>, grid_for(table.num_chunks), kMapThreads, stream_of(stream), table,
         map, found_inf);
  return last_error();
}

int split(const DeviceTable& table, StreamHandle stream) {
  if (table.num_chunks == 0) return 0;
  LAUNCH(split_kernel<false>, grid_for(table.num_chunks), kMapThreads, stream_of(stream), table);
  return last_error();
}

int join(const DeviceTable& table, StreamHandle stream) {
  if (table.num_chunks == 0) return 0;
  LAUNCH(split_kernel<true>, grid_for(table.num_chunks), kMapThreads, stream_of(stream), table);
  return last_error();
}

int update_scale(const ScaleTensors& tensors, const ScaleParameters& parameters,
                 StreamHandle stream) {
  LAUNCH(update_scale_kernel, 1, 1, stream_of(stream), tensors.scale, tensors.growth_tracker,
         tensors.hysteresis_tracker, tensors.found_inf, parameters);
  return last_error();
}

}  // namespace lightning_mp::cuda
