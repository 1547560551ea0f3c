#include "bind/gradient_stats.h"

#include <torch/csrc/stable/library.h>

#include "bind/cpu_calls.h"
#include "cpu/norm.h"
#include "functors/norm.h"

namespace lightning_mp::bind {
namespace {

void run_on_cpu(const GradientStatsCall& call) {
  const cpu::SumsOfSquares sums = cpu::sums_of_squares(call.table, kGradient, call.found_inf,
                                                       cpu::active_isa(), torch_parallel_for());
  const NormAndFactor result =
      norm_and_factor(sums.total, value_or(call.inv_scale, 1.0f), call.max_norm.has_value(),
                      static_cast<float>(call.max_norm.value_or(0.0)));
  *call.norm.mutable_data_ptr<float>() = result.norm;
  *call.factor.mutable_data_ptr<float>() = result.factor;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(lightning_mp, CPU, library) {
  library.impl("gradient_stats_", TORCH_BOX(&gradient_stats<run_on_cpu>));
}

}  // namespace lightning_mp::bind
