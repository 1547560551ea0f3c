#include "bind/sgd_step.h"

#include <torch/csrc/stable/library.h>

#include "bind/cpu_calls.h"
#include "cpu/steps.h"

namespace lightning_mp::bind {
namespace {

bool run_on_cpu(const SgdCall& call) {
  if (is_skipped(call.arguments)) return false;
  cpu::sgd_step(call.table, call.parameters, step_context(call.arguments));
  return true;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(lightning_mp, CPU, library) {
  library.impl("sgd_step_", TORCH_BOX(&sgd_step<run_on_cpu>));
}

}  // namespace lightning_mp::bind
