#include "bind/update_scale.h"

namespace lightning_mp::bind {

void check_update(const char* op, const UpdateScaleCall& call) {
  ScalarChecks scalars(op);
  scalars.check("scale", call.scale);
  scalars.check("growth_tracker", call.growth_tracker, DType::kInt32);
  scalars.check("hysteresis_tracker", call.hysteresis_tracker, DType::kInt32);
  scalars.check("found_inf", call.found_inf);
}

}  // namespace lightning_mp::bind
