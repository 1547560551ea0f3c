// lightning_mp::adam_step_
#include <torch/csrc/stable/library.h>

#include "bind/cpu_calls.h"
#include "bind/step_rows.h"
#include "cpu/steps.h"

namespace lightning_mp::bind {
namespace {

constexpr const char* kOp = "adam_step_";

void check_adam(const AdamParameters& parameters) {
  check_range(kOp, "beta1", parameters.beta1, 0.0, 1.0);
  check_range(kOp, "beta2", parameters.beta2, 0.0, 1.0);
  check_range(kOp, "eps", parameters.eps);
  check_range(kOp, "weight_decay", parameters.weight_decay);
}

std::vector<float*> counters_of(const TensorHandles& steps, const TensorHandles& weights) {
  check_length(kOp, "steps", steps, "weights", weights.size());
  ScalarChecks scalars(kOp, weights);
  std::vector<float*> counters(steps.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    scalars.check("steps[" + std::to_string(i) + "]", steps[i]);
    void* data;
    STABLE_TORCH_ERROR_CODE_CHECK(torch_get_mutable_data_ptr(steps[i], &data));
    counters[i] = static_cast<float*>(data);
  }
  return counters;
}

void adam_step_cpu(StableListHandle gradient_list, StableListHandle weight_list,
                   StableListHandle copy_list, StableListHandle exp_avg_list,
                   StableListHandle exp_avg_sq_list, StableListHandle step_list,
                   std::optional<Tensor> factor, std::optional<Tensor> found_inf,
                   std::optional<Tensor> lr_tensor, double lr, double beta1, double beta2,
                   double eps, double weight_decay, bool decoupled, bool maximize,
                   std::optional<double> clip_value, bool zero_gradients, bool adopt) {
  const TensorHandles gradients(gradient_list), weights(weight_list), copies(copy_list),
      exp_avgs(exp_avg_list), exp_avg_sqs(exp_avg_sq_list), steps(step_list);
  const StepArguments arguments = {kOp,
                                   gradients,
                                   weights,
                                   copies,
                                   {{"exp_avgs", exp_avgs}, {"exp_avg_sqs", exp_avg_sqs}},
                                   factor,
                                   found_inf,
                                   lr_tensor,
                                   lr,
                                   clip_value,
                                   {zero_gradients, adopt}};
  const AdamParameters parameters = {
      beta1, beta2, eps, weight_decay, decoupled, maximize, clip_bound(arguments)};
  check_adam(parameters);
  const std::vector<float*> counters = counters_of(steps, weights);
  StandIns stand_ins;
  const RowTable table = step_rows(arguments, stand_ins);
  if (is_skipped(arguments)) return;
  cpu::adam_step(table, counters, parameters, step_context(arguments));
  stand_ins.write_back();
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(lightning_mp, CPU, library) {
  library.impl("adam_step_", TORCH_BOX(&adam_step_cpu));
}

}  // namespace lightning_mp::bind
