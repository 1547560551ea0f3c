// The optimizers' steps over many tensors.
#pragma once

#include <vector>

#include "common/parameters.h"
#include "common/row_table.h"
#include "cpu/isa.h"
#include "cpu/walk.h"

namespace lightning_mp::cpu {

// What a step reads beside its rows.
struct StepContext {
  double lr;
  // Of all gradients: unscaling and clipping by norm.
  float factor;
  StepOptions options;
  Isa isa;
  const ParallelFor& parallel_for;
};

// `steps` has one counter per row; each grows by 1 first.
void adam_step(const RowTable& table, const std::vector<float*>& steps,
               const AdamParameters& parameters, const StepContext& context);

void sgd_step(const RowTable& table, const SgdParameters& parameters, const StepContext& context);

}  // namespace lightning_mp::cpu
