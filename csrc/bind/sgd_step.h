// lightning_mp::sgd_step_ up to where a device runs it.
#pragma once

#include <vector>

#include "bind/step_rows.h"

namespace lightning_mp::bind {

struct SgdCall {
  const StepArguments& arguments;
  const RowTable& table;
  const SgdParameters& parameters;
};

// `run` returns false if it knows that nothing was written.
template <bool (*run)(const SgdCall&)>
void sgd_step(Tensors gradients, Tensors weights, Tensors copies, Tensors momentum_buffers,
              std::optional<Tensor> factor, std::optional<Tensor> found_inf,
              std::optional<Tensor> lr_tensor, double lr, double momentum, double dampening,
              double weight_decay, bool nesterov, bool maximize, bool is_first,
              std::optional<double> clip_value, bool zero_gradients, bool adopt) {
  std::vector<StateList> states;
  if (momentum != 0.0 || !momentum_buffers.empty()) {
    states.push_back({"momentum_buffers", momentum_buffers});
  }
  const StepArguments arguments = {"sgd_step_",
                                   gradients,
                                   weights,
                                   copies,
                                   states,
                                   pointer_to(factor),
                                   pointer_to(found_inf),
                                   pointer_to(lr_tensor),
                                   lr,
                                   clip_value,
                                   {zero_gradients, adopt}};
  const ListInfos infos = check_step(arguments);
  check_range(arguments.op, "momentum", momentum);
  check_range(arguments.op, "weight_decay", weight_decay);
  Layouts layouts;
  const RowTable table = step_rows(arguments, infos, layouts);
  const SgdParameters parameters = {momentum, dampening, weight_decay,         nesterov,
                                    maximize, is_first,  clip_bound(arguments)};
  if (run({arguments, table, parameters})) layouts.write_back();
}

}  // namespace lightning_mp::bind
