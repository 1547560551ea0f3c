#include "cuda/launch.cuh"
#include "cuda/step.cuh"

namespace lightning_mp::cuda {

int sgd_step(const DeviceTable& table, const SgdParameters& parameters, const StepScalars& inputs,
             StepOptions options, StreamHandle stream) {
  if (table.num_chunks == 0) return 0;
  const SgdScalars scalars = sgd_scalars(parameters, inputs.lr, 1.0f);
  const Source<SgdScalars> source = {scalars, inputs.lr_tensor, inputs.factor};
  const int64_t grid = grid_for(table.num_chunks);
  if (parameters.momentum == 0.0) {
    LAUNCH(step_kernel<PlainSgdRule>, grid, kStepThreads, stream_of(stream), table, source,
           inputs.found_inf, options);
  } else if (parameters.nesterov) {
    LAUNCH(step_kernel<MomentumSgdRule<true>>, grid, kStepThreads, stream_of(stream), table, source,
           inputs.found_inf, options);
  } else {
    LAUNCH(step_kernel<MomentumSgdRule<false>>, grid, kStepThreads, stream_of(stream), table,
           source, inputs.found_inf, options);
  }
  return last_error();
}

}  // namespace lightning_mp::cuda
