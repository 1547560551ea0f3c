// lightning_mp::sgd_step_ up to where a device runs it.
#pragma once

#include <optional>
#include <vector>

#include "bind/checks.h"
#include "bind/step_rows.h"

namespace lightning_mp::bind {

struct SgdCall {
  const StepArguments& arguments;
  const RowTable& table;
  const SgdParameters& parameters;
};

// `run` returns false if it knows that nothing was written.
template <bool (*run)(const SgdCall&)>
void sgd_step(StableListHandle gradient_list, StableListHandle weight_list,
              StableListHandle copy_list, StableListHandle momentum_buffer_list,
              std::optional<Tensor> factor, std::optional<Tensor> found_inf,
              std::optional<Tensor> lr_tensor, double lr, double momentum, double dampening,
              double weight_decay, bool nesterov, bool maximize, bool is_first,
              std::optional<double> clip_value, bool zero_gradients, bool adopt) {
  const TensorHandles gradients(gradient_list), weights(weight_list), copies(copy_list),
      momentum_buffers(momentum_buffer_list);
  std::vector<StateList> states;
  if (momentum != 0.0 || momentum_buffers.size() > 0) {
    states.push_back({"momentum_buffers", momentum_buffers});
  }
  const StepArguments arguments = {"sgd_step_",
                                   gradients,
                                   weights,
                                   copies,
                                   states,
                                   factor,
                                   found_inf,
                                   lr_tensor,
                                   lr,
                                   clip_value,
                                   {zero_gradients, adopt}};
  check_range(arguments.op, "momentum", momentum);
  check_range(arguments.op, "weight_decay", weight_decay);
  StandIns stand_ins;
  const RowTable table = step_rows(arguments, stand_ins);
  const SgdParameters parameters = {momentum, dampening, weight_decay,         nesterov,
                                    maximize, is_first,  clip_bound(arguments)};
  if (run({arguments, table, parameters})) stand_ins.write_back();
}

}  // namespace lightning_mp::bind
