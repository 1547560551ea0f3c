// lightning_mp::gradient_stats_ up to where a device runs it.
#pragma once

#include <optional>

#include "bind/checks.h"
#include "bind/rows.h"

namespace lightning_mp::bind {

struct GradientStatsCall {
  const RowTable& table;
  const std::optional<Tensor>& inv_scale;
  std::optional<double> max_norm;
  const Tensor& norm;
  const Tensor& factor;
  FoundInf found_inf;
};

template <void (*run)(const GradientStatsCall&)>
void gradient_stats(StableListHandle gradient_list, std::optional<Tensor> inv_scale,
                    std::optional<double> max_norm, Tensor norm, Tensor factor, Tensor found_inf) {
  const char* op = "gradient_stats_";
  const TensorHandles gradients(gradient_list);
  ScalarChecks scalars(op, gradients);
  scalars.check("norm", norm);
  scalars.check("factor", factor);
  scalars.check("inv_scale", inv_scale);
  const FoundInf found = scalars.check_found_inf(found_inf, gradients.size());
  check_positive(op, "max_norm", max_norm);
  StandIns stand_ins;
  const RowTable table = make_rows(op, {{"gradients", gradients, kGradient, kFloating}}, stand_ins);
  run({table, inv_scale, max_norm, norm, factor, found});
}

}  // namespace lightning_mp::bind
