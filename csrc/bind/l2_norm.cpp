#include "bind/l2_norm.h"

#include <torch/csrc/stable/library.h>

#include <cmath>

#include "bind/cpu_calls.h"
#include "cpu/norm.h"

namespace lightning_mp::bind {
namespace {

void run_on_cpu(const L2NormCall& call) {
  const cpu::SumsOfSquares sums =
      cpu::sums_of_squares(call.table, kInput, {}, cpu::active_isa(), torch_parallel_for());
  *call.total.mutable_data_ptr<float>() = static_cast<float>(std::sqrt(sums.total));
  for (int64_t i = 0; i < call.each.numel(); ++i) {
    call.each.mutable_data_ptr<float>()[i] = static_cast<float>(std::sqrt(sums.each[i]));
  }
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(lightning_mp, CPU, library) {
  library.impl("l2_norm", TORCH_BOX(&l2_norm<run_on_cpu>));
}

}  // namespace lightning_mp::bind
