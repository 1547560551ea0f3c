// lightning_mp::update_scale_
#include <torch/csrc/stable/library.h>

#include "bind/checks.h"
#include "functors/loss_scale.h"

namespace lightning_mp::bind {
namespace {

constexpr const char* kOp = "update_scale_";

void check_update(const Tensor& scale, const Tensor& growth_tracker,
                  const Tensor& hysteresis_tracker, const Tensor& found_inf) {
  ScalarChecks scalars(kOp);
  scalars.check("scale", scale);
  scalars.check("growth_tracker", growth_tracker, DType::kInt32);
  scalars.check("hysteresis_tracker", hysteresis_tracker, DType::kInt32);
  scalars.check("found_inf", found_inf);
}

void update_scale_cpu(Tensor scale, Tensor growth_tracker, Tensor hysteresis_tracker,
                      Tensor found_inf, double growth_factor, double backoff_factor,
                      int64_t growth_interval, int64_t hysteresis, double min_scale,
                      double max_scale) {
  check_update(scale, growth_tracker, hysteresis_tracker, found_inf);
  const ScaleParameters parameters = {
      static_cast<float>(growth_factor), static_cast<float>(backoff_factor),
      static_cast<int>(growth_interval), static_cast<int>(hysteresis),
      static_cast<float>(min_scale),     static_cast<float>(max_scale)};
  const ScaleState state =
      next_scale({*scale.const_data_ptr<float>(), *growth_tracker.const_data_ptr<int32_t>(),
                  *hysteresis_tracker.const_data_ptr<int32_t>()},
                 *found_inf.const_data_ptr<float>() != 0.0f, parameters);
  *scale.mutable_data_ptr<float>() = state.scale;
  *growth_tracker.mutable_data_ptr<int32_t>() = state.growth_tracker;
  *hysteresis_tracker.mutable_data_ptr<int32_t>() = state.hysteresis_tracker;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(lightning_mp, CPU, library) {
  library.impl("update_scale_", TORCH_BOX(&update_scale_cpu));
}

}  // namespace lightning_mp::bind
