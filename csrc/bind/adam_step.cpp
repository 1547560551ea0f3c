// lightning_mp::adam_step_
#include <torch/csrc/stable/library.h>

#include "bind/cpu_calls.h"
#include "bind/step_rows.h"
#include "cpu/steps.h"

namespace lightning_mp::bind {
namespace {

constexpr const char* kOp = "adam_step_";

void check_adam(const StepArguments& arguments, const ListInfos& infos, const Tensors& steps,
                const AdamParameters& parameters) {
  check_length(kOp, {"steps", steps, {}}, {"weights", arguments.weights, {}});
  std::vector<DeviceScalar> counters;
  counters.reserve(steps.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    counters.push_back({"steps[" + std::to_string(i) + "]", &steps[i]});
  }
  check_scalars(kOp, infos, counters);
  check_range(kOp, "beta1", parameters.beta1, 0.0, 1.0);
  check_range(kOp, "beta2", parameters.beta2, 0.0, 1.0);
  check_range(kOp, "eps", parameters.eps);
  check_range(kOp, "weight_decay", parameters.weight_decay);
}

void adam_step_cpu(Tensors gradients, Tensors weights, Tensors copies, Tensors exp_avgs,
                   Tensors exp_avg_sqs, Tensors steps, std::optional<Tensor> factor,
                   std::optional<Tensor> found_inf, std::optional<Tensor> lr_tensor, double lr,
                   double beta1, double beta2, double eps, double weight_decay, bool decoupled,
                   bool maximize, std::optional<double> clip_value, bool zero_gradients,
                   bool adopt) {
  const StepArguments arguments = {kOp,
                                   gradients,
                                   weights,
                                   copies,
                                   {{"exp_avgs", exp_avgs}, {"exp_avg_sqs", exp_avg_sqs}},
                                   pointer_to(factor),
                                   pointer_to(found_inf),
                                   pointer_to(lr_tensor),
                                   lr,
                                   clip_value,
                                   {zero_gradients, adopt}};
  const ListInfos infos = check_step(arguments);
  const AdamParameters parameters = {
      beta1, beta2, eps, weight_decay, decoupled, maximize, clip_bound(arguments)};
  check_adam(arguments, infos, steps, parameters);
  if (is_skipped(arguments)) return;
  Layouts layouts;
  const RowTable table = step_rows(arguments, infos, layouts);
  std::vector<float*> counters;
  counters.reserve(steps.size());
  for (const Tensor& step : steps) counters.push_back(step.mutable_data_ptr<float>());
  cpu::adam_step(table, counters, parameters, step_context(arguments));
  layouts.write_back();
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(lightning_mp, CPU, library) {
  library.impl("adam_step_", TORCH_BOX(&adam_step_cpu));
}

}  // namespace lightning_mp::bind
