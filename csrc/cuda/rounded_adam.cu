#include "cuda/launch.cuh"
#include "cuda/step.cuh"

namespace lightning_mp::cuda {

int rounded_adam_step(const DeviceTable& table, const AdamScalars* scalars, bool is_decoupled,
                      const float* found_inf, StepOptions options, StreamHandle stream) {
  if (table.num_chunks == 0) return 0;
  const Source<AdamScalars> source = {scalars};
  const int64_t grid = grid_for(table.num_chunks);
  if (is_decoupled) {
    LAUNCH(step_kernel<Rounded<AdamRule<true>>>, grid, kStepThreads, stream_of(stream), table,
           source, found_inf, options);
  } else {
    LAUNCH(step_kernel<Rounded<AdamRule<false>>>, grid, kStepThreads, stream_of(stream), table,
           source, found_inf, options);
  }
  return last_error();
}

}  // namespace lightning_mp::cuda
