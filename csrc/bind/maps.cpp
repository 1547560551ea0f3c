#include "bind/maps.h"

#include <torch/csrc/stable/library.h>

#include "bind/cpu_calls.h"
#include "cpu/maps.h"

namespace lightning_mp::bind {
namespace {

void run_on_cpu(const ScaleCopyCall& call) {
  const float scale = *call.scale.const_data_ptr<float>();
  cpu::scale_copy(call.table, scale, call.found_inf, cpu::active_isa(), torch_parallel_for());
}

void run_on_cpu(const AxpbyCall& call) {
  cpu::axpby(call.table, call.a, call.b, call.found_inf, cpu::active_isa(), torch_parallel_for());
}

void run_on_cpu(const SplitCall& call) {
  cpu::split(call.table, cpu::active_isa(), torch_parallel_for());
}

void run_on_cpu(const JoinCall& call) {
  cpu::join(call.table, cpu::active_isa(), torch_parallel_for());
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(lightning_mp, CPU, library) {
  library.impl("scale_copy_", TORCH_BOX(&scale_copy<run_on_cpu>));
  library.impl("axpby_", TORCH_BOX(&axpby<run_on_cpu>));
  library.impl("split_", TORCH_BOX(&split<run_on_cpu>));
  library.impl("join_", TORCH_BOX(&join<run_on_cpu>));
}

}  // namespace lightning_mp::bind
