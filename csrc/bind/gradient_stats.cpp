// lightning_mp::gradient_stats_
#include <torch/csrc/stable/library.h>

#include "bind/checks.h"
#include "bind/cpu_calls.h"
#include "bind/rows.h"
#include "cpu/norm.h"
#include "functors/norm.h"

namespace lightning_mp::bind {
namespace {

constexpr const char* kOp = "gradient_stats_";

void gradient_stats_cpu(StableListHandle gradient_list, std::optional<Tensor> inv_scale,
                        std::optional<double> max_norm, Tensor norm, Tensor factor,
                        Tensor found_inf) {
  const TensorHandles gradients(gradient_list);
  ScalarChecks scalars(kOp, gradients);
  scalars.check("norm", norm);
  scalars.check("factor", factor);
  scalars.check("found_inf", found_inf);
  scalars.check("inv_scale", inv_scale);
  check_positive(kOp, "max_norm", max_norm);
  StandIns stand_ins;
  const RowTable table =
      make_rows(kOp, {{"gradients", gradients, kGradient, kFloating}}, stand_ins);
  const cpu::SumsOfSquares sums =
      cpu::sums_of_squares(table, kGradient, cpu::active_isa(), torch_parallel_for());
  const NormAndFactor result =
      norm_and_factor(sums.total, value_or(inv_scale, 1.0f), max_norm.has_value(),
                      static_cast<float>(max_norm.value_or(0.0)));
  *norm.mutable_data_ptr<float>() = result.norm;
  *factor.mutable_data_ptr<float>() = result.factor;
  if (sums.has_inf) *found_inf.mutable_data_ptr<float>() = 1.0f;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(lightning_mp, CPU, library) {
  library.impl("gradient_stats_", TORCH_BOX(&gradient_stats_cpu));
}

}  // namespace lightning_mp::bind
