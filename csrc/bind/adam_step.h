// lightning_mp::adam_step_ up to where a device runs it.
#pragma once

#include <vector>

#include "bind/step_rows.h"

namespace lightning_mp::bind {

struct AdamCall {
  const StepArguments& arguments;
  const RowTable& table;
  // One counter per row.
  const std::vector<float*>& steps;
  const AdamParameters& parameters;
};

void check_adam(const StepArguments& arguments, const ListInfos& infos, const Tensors& steps,
                const AdamParameters& parameters);

// `run` returns false if it knows that nothing was written.
template <bool (*run)(const AdamCall&)>
void adam_step(Tensors gradients, Tensors weights, Tensors copies, Tensors exp_avgs,
               Tensors exp_avg_sqs, Tensors steps, std::optional<Tensor> factor,
               std::optional<Tensor> found_inf, std::optional<Tensor> lr_tensor, double lr,
               double beta1, double beta2, double eps, double weight_decay, bool decoupled,
               bool maximize, std::optional<double> clip_value, bool zero_gradients, bool adopt) {
  const StepArguments arguments = {"adam_step_",
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
  Layouts layouts;
  const RowTable table = step_rows(arguments, infos, layouts);
  std::vector<float*> counters;
  counters.reserve(steps.size());
  for (const Tensor& step : steps) counters.push_back(step.mutable_data_ptr<float>());
  if (run({arguments, table, counters, parameters})) layouts.write_back();
}

}  // namespace lightning_mp::bind
