// lightning_mp::gradient_stats_ up to where a device runs it.
#pragma once

#include <optional>

#include "bind/checks.h"
#include "bind/layouts.h"
#include "common/row_table.h"

namespace lightning_mp::bind {

struct GradientStatsCall {
  const RowTable& table;
  // Null for 1.
  const Tensor* inv_scale;
  std::optional<double> max_norm;
  const Tensor& norm;
  const Tensor& factor;
  const Tensor& found_inf;
};

template <void (*run)(const GradientStatsCall&)>
void gradient_stats(std::vector<Tensor> gradients, std::optional<Tensor> inv_scale,
                    std::optional<double> max_norm, Tensor norm, Tensor factor,
                    Tensor found_inf) {
  const char* op = "gradient_stats_";
  const ListInfos infos = check_lists(op, {{"gradients", gradients, kFloating}});
  check_scalars(op, infos,
                {{"norm", &norm},
                 {"factor", &factor},
                 {"found_inf", &found_inf},
                 {"inv_scale", pointer_to(inv_scale)}});
  check_positive(op, "max_norm", max_norm);
  Layouts layouts;
  RowTable table;
  for (size_t i = 0; i < gradients.size(); ++i) {
    TensorRow row = {};
    row.numel = infos[0][i].numel;
    layouts.place(row, kGradient, gradients[i], infos[0][i], infos[0][i], true, false);
    table.add(row);
  }
  run({table, pointer_to(inv_scale), max_norm, norm, factor, found_inf});
}

}  // namespace lightning_mp::bind
