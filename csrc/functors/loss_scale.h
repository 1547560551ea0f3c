// How the loss scale moves after a step.
#pragma once

#include <stdint.h>

#include "common/macros.h"
#include "common/parameters.h"

namespace lightning_mp {

struct ScaleState {
  float scale;
  // Clean steps in a row.
  int32_t growth_tracker;
  // Overflows left until the scale shrinks.
  int32_t hysteresis_tracker;
};

HOST_DEVICE ScaleState next_scale(ScaleState state, bool has_overflow,
                                  const ScaleParameters& parameters) {
  if (has_overflow) {
    state.growth_tracker = 0;
    state.hysteresis_tracker = state.hysteresis_tracker > 1 ? state.hysteresis_tracker - 1 : 0;
    if (state.hysteresis_tracker == 0) state.scale *= parameters.backoff_factor;
  } else {
    state.growth_tracker += 1;
    state.hysteresis_tracker = parameters.hysteresis;
    if (state.growth_tracker >= parameters.growth_interval) {
      state.growth_tracker = 0;
      state.scale *= parameters.growth_factor;
    }
  }
  if (state.scale < parameters.min_scale) state.scale = parameters.min_scale;
  if (state.scale > parameters.max_scale) state.scale = parameters.max_scale;
  return state;
}

}  // namespace lightning_mp
