// lightning_mp::update_scale_ up to where a device runs it.
#pragma once

#include "bind/checks.h"
#include "common/parameters.h"

namespace lightning_mp::bind {

struct UpdateScaleCall {
  const Tensor& scale;
  const Tensor& growth_tracker;
  const Tensor& hysteresis_tracker;
  const Tensor& found_inf;
  const ScaleParameters& parameters;
};

void check_update(const char* op, const UpdateScaleCall& call);

template <void (*run)(const UpdateScaleCall&)>
void update_scale(Tensor scale, Tensor growth_tracker, Tensor hysteresis_tracker, Tensor found_inf,
                  double growth_factor, double backoff_factor, int64_t growth_interval,
                  int64_t hysteresis, double min_scale, double max_scale) {
  const ScaleParameters parameters = {
      static_cast<float>(growth_factor), static_cast<float>(backoff_factor),
      static_cast<int>(growth_interval), static_cast<int>(hysteresis),
      static_cast<float>(min_scale),     static_cast<float>(max_scale)};
  const UpdateScaleCall call = {scale, growth_tracker, hysteresis_tracker, found_inf, parameters};
  check_update("update_scale_", call);
  run(call);
}

}  // namespace lightning_mp::bind
