#include <string>

#include "bind/adam_step.h"

namespace lightning_mp::bind {

void check_adam(const StepArguments& arguments, const ListInfos& infos, const Tensors& steps,
                const AdamParameters& parameters) {
  const char* op = arguments.op;
  check_length(op, {"steps", steps, {}}, {"weights", arguments.weights, {}});
  std::vector<DeviceScalar> counters;
  counters.reserve(steps.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    counters.push_back({"steps[" + std::to_string(i) + "]", &steps[i]});
  }
  check_scalars(op, infos, counters);
  check_range(op, "beta1", parameters.beta1, 0.0, 1.0);
  check_range(op, "beta2", parameters.beta2, 0.0, 1.0);
  check_range(op, "eps", parameters.eps);
  check_range(op, "weight_decay", parameters.weight_decay);
}

}  // namespace lightning_mp::bind
