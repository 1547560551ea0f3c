#include <torch/headeronly/util/shim_utils.h>

#include <string>

#include "bind/adam_step.h"
#include "bind/checks.h"

namespace lightning_mp::bind {

void check_adam(const char* op, const AdamParameters& parameters) {
  check_range(op, "beta1", parameters.beta1, 0.0, 1.0);
  check_range(op, "beta2", parameters.beta2, 0.0, 1.0);
  check_range(op, "eps", parameters.eps);
  check_range(op, "weight_decay", parameters.weight_decay);
}

std::vector<float*> counters_of(const char* op, const TensorHandles& steps,
                                const TensorHandles& weights) {
  check_length(op, "steps", steps, "weights", weights.size());
  ScalarChecks scalars(op, weights);
  std::vector<float*> counters(steps.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    scalars.check("steps[" + std::to_string(i) + "]", steps[i]);
    void* data;
    TORCH_ERROR_CODE_CHECK(torch_get_mutable_data_ptr(steps[i], &data));
    counters[i] = static_cast<float*>(data);
  }
  return counters;
}

}  // namespace lightning_mp::bind
