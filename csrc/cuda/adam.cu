#include "cuda/launch.cuh"
#include "cuda/prepare.cuh"
#include "cuda/step.cuh"

namespace lightning_mp::cuda {

int prepare_adam(float* const* steps, int64_t num_rows, const AdamParameters& parameters,
                 const StepScalars& inputs, AdamScalars* scalars, StreamHandle stream) {
  if (num_rows == 0) return 0;
  LAUNCH(prepare_adam_kernel, grid_for((num_rows + kStepThreads - 1) / kStepThreads), kStepThreads,
         stream_of(stream), steps, num_rows, parameters, inputs.lr, inputs.lr_tensor, inputs.factor,
         inputs.found_inf, scalars);
  return last_error();
}

int adam_step(const DeviceTable& table, const AdamScalars* scalars, bool is_decoupled,
              const float* found_inf, StepOptions options, StreamHandle stream) {
  if (table.num_chunks == 0) return 0;
  const Source<AdamScalars> source = {scalars};
  const int64_t grid = grid_for(table.num_chunks);
  if (is_decoupled) {
    LAUNCH(step_kernel<AdamRule<true>>, grid, kStepThreads, stream_of(stream), table, source,
           found_inf, options);
  } else {
    LAUNCH(step_kernel<AdamRule<false>>, grid, kStepThreads, stream_of(stream), table, source,
           found_inf, options);
  }
  return last_error();
}

}  // namespace lightning_mp::cuda
