#include "bind/adam_step.h"

#include <torch/csrc/stable/library.h>

#include "bind/cpu_calls.h"
#include "cpu/steps.h"

namespace lightning_mp::bind {
namespace {

bool run_on_cpu(const AdamCall& call) {
  if (is_skipped(call.arguments)) return false;
  cpu::adam_step(call.table, call.steps, call.parameters, step_context(call.arguments));
  return true;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(lightning_mp, CPU, library) {
  library.impl("adam_step_", TORCH_BOX(&adam_step<run_on_cpu>));
}

}  // namespace lightning_mp::bind
