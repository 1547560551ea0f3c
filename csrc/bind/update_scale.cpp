#include "bind/update_scale.h"

#include <torch/csrc/stable/library.h>

#include "functors/loss_scale.h"

namespace lightning_mp::bind {
namespace {

void run_on_cpu(const UpdateScaleCall& call) {
  const ScaleState state = next_scale(
      {*call.scale.const_data_ptr<float>(), *call.growth_tracker.const_data_ptr<int32_t>(),
       *call.hysteresis_tracker.const_data_ptr<int32_t>()},
      *call.found_inf.const_data_ptr<float>() != 0.0f, call.parameters);
  *call.scale.mutable_data_ptr<float>() = state.scale;
  *call.growth_tracker.mutable_data_ptr<int32_t>() = state.growth_tracker;
  *call.hysteresis_tracker.mutable_data_ptr<int32_t>() = state.hysteresis_tracker;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(lightning_mp, CPU, library) {
  library.impl("update_scale_", TORCH_BOX(&update_scale<run_on_cpu>));
}

}  // namespace lightning_mp::bind
