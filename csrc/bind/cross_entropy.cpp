#include "bind/cross_entropy.h"

#include <torch/csrc/stable/library.h>

#include "bind/checks.h"
#include "bind/cpu_calls.h"
#include "cpu/cross_entropy.h"

namespace lightning_mp::bind {
namespace {

void check_targets(const char* op, const CrossEntropyInputs& inputs) {
  for (int64_t i = 0; i < inputs.num_rows; ++i) {
    const int64_t target = inputs.targets[i];
    if (target == inputs.ignore_index || (target >= 0 && target < inputs.num_classes)) continue;
    refuse(op,
           "target[" + std::to_string(i) + "] = " + std::to_string(target) + " is out of bounds",
           "a class below " + std::to_string(inputs.num_classes) + " or ignore_index, " +
               std::to_string(inputs.ignore_index) + ",");
  }
}

void run_on_cpu(const CrossEntropyForwardCall& call) {
  check_targets("cross_entropy_forward", call.inputs);
  auto* statistics = static_cast<RowStatistics*>(call.statistics.mutable_data_ptr());
  cpu::cross_entropy_forward(call.inputs, call.losses.mutable_data_ptr<float>(), statistics,
                             cpu::active_isa(), torch_parallel_for());
}

void run_on_cpu(const CrossEntropyBackwardCall& call) {
  check_targets("cross_entropy_backward", call.inputs);
  const auto* statistics = static_cast<const RowStatistics*>(call.statistics.const_data_ptr());
  cpu::cross_entropy_backward(call.inputs, statistics, call.gradient.const_data_ptr<float>(),
                              call.result.mutable_data_ptr(), cpu::active_isa(),
                              torch_parallel_for());
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(lightning_mp, CPU, library) {
  library.impl("cross_entropy_forward", TORCH_BOX(&cross_entropy_forward<run_on_cpu>));
  library.impl("cross_entropy_backward", TORCH_BOX(&cross_entropy_backward<run_on_cpu>));
}

}  // namespace lightning_mp::bind
