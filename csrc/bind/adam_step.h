// lightning_mp::adam_step_ up to where a device runs it.
#pragma once

#include <optional>
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

constexpr unsigned kMoments = kFloat32Only | bit(DType::kBFloat16);

void check_adam(const char* op, const AdamParameters& parameters);

std::vector<float*> counters_of(const char* op, const TensorHandles& steps,
                                const TensorHandles& weights);

// `run` returns false if it knows that nothing was written.
template <bool (*run)(const AdamCall&)>
void adam_step(StableListHandle gradient_list, StableListHandle weight_list,
               StableListHandle copy_list, StableListHandle exp_avg_list,
               StableListHandle exp_avg_sq_list, StableListHandle step_list,
               std::optional<Tensor> factor, std::optional<Tensor> found_inf,
               std::optional<Tensor> lr_tensor, double lr, double beta1, double beta2, double eps,
               double weight_decay, bool decoupled, bool maximize, std::optional<double> clip_value,
               bool zero_gradients, bool adopt, int64_t seed) {
  const TensorHandles gradients(gradient_list), weights(weight_list), copies(copy_list),
      exp_avgs(exp_avg_list), exp_avg_sqs(exp_avg_sq_list), steps(step_list);
  const StepArguments arguments = {
      "adam_step_",
      gradients,
      weights,
      copies,
      {{"exp_avgs", exp_avgs, kMoments}, {"exp_avg_sqs", exp_avg_sqs, kMoments}},
      factor,
      found_inf,
      lr_tensor,
      lr,
      clip_value,
      {zero_gradients, adopt}};
  const AdamParameters parameters = {beta1,
                                     beta2,
                                     eps,
                                     weight_decay,
                                     decoupled,
                                     maximize,
                                     clip_bound(arguments),
                                     static_cast<uint64_t>(seed)};
  check_adam(arguments.op, parameters);
  const std::vector<float*> counters = counters_of(arguments.op, steps, weights);
  StandIns stand_ins;
  const RowTable table = step_rows(arguments, stand_ins);
  if (run({arguments, table, counters, parameters})) stand_ins.write_back();
}

}  // namespace lightning_mp::bind
