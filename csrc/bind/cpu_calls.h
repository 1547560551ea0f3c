// How kernels on the CPU read their scalars and spread over torch's threads.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <optional>

#include "bind/step_rows.h"
#include "cpu/steps.h"

namespace lightning_mp::bind {

inline const cpu::ParallelFor& torch_parallel_for() {
  static const cpu::ParallelFor parallel_for =
      [](int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
        torch::stable::parallel_for(0, count, grain, body);
      };
  return parallel_for;
}

inline float value_or(const std::optional<Tensor>& scalar, float otherwise) {
  return scalar ? *scalar->const_data_ptr<float>() : otherwise;
}

inline bool is_skipped(const StepArguments& arguments) {
  return value_or(arguments.found_inf, 0.0f) != 0.0f;
}

inline cpu::StepContext step_context(const StepArguments& arguments) {
  const double lr = arguments.lr_tensor ? value_or(arguments.lr_tensor, 0.0f) : arguments.lr;
  return {lr, value_or(arguments.factor, 1.0f), arguments.options, cpu::active_isa(),
          torch_parallel_for()};
}

}  // namespace lightning_mp::bind
