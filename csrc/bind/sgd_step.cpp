// lightning_mp::sgd_step_
#include <torch/csrc/stable/library.h>

#include "bind/cpu_calls.h"
#include "bind/step_rows.h"
#include "cpu/steps.h"

namespace lightning_mp::bind {
namespace {

constexpr const char* kOp = "sgd_step_";

void sgd_step_cpu(StableListHandle gradient_list, StableListHandle weight_list,
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
  const StepArguments arguments = {kOp,
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
  check_range(kOp, "momentum", momentum);
  check_range(kOp, "weight_decay", weight_decay);
  StandIns stand_ins;
  const RowTable table = step_rows(arguments, stand_ins);
  if (is_skipped(arguments)) return;
  const SgdParameters parameters = {momentum, dampening, weight_decay,         nesterov,
                                    maximize, is_first,  clip_bound(arguments)};
  cpu::sgd_step(table, parameters, step_context(arguments));
  stand_ins.write_back();
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(lightning_mp, CPU, library) {
  library.impl("sgd_step_", TORCH_BOX(&sgd_step_cpu));
}

}  // namespace lightning_mp::bind
