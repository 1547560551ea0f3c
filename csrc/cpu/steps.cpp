#include "cpu/steps.h"

#include "cpu/kernels.h"
#include "functors/adam.h"
#include "functors/sgd.h"

namespace lightning_mp::cpu {

void adam_step(const RowTable& table, const std::vector<float*>& steps,
               const AdamParameters& parameters, const StepContext& context) {
  std::vector<AdamScalars> scalars(table.rows.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    *steps[i] += 1.0f;
    // Powers are slow, and rows mostly have the same count.
    scalars[i] = i > 0 && *steps[i] == *steps[i - 1]
                     ? scalars[i - 1]
                     : adam_scalars(parameters, context.lr, *steps[i], context.factor);
  }
  const Kernels& kernels = kernels_of(context.isa);
  walk(table, context.parallel_for, [&](size_t i, int64_t begin, int64_t end) {
    kernels.adam_step(table.rows[i], begin, end, scalars[i], parameters.is_decoupled,
                      context.options);
  });
}

void sgd_step(const RowTable& table, const SgdParameters& parameters, const StepContext& context) {
  const SgdScalars scalars = sgd_scalars(parameters, context.lr, context.factor);
  const SgdKind kind = parameters.momentum == 0.0 ? SgdKind::kPlain
                       : parameters.nesterov      ? SgdKind::kNesterov
                                                  : SgdKind::kMomentum;
  const Kernels& kernels = kernels_of(context.isa);
  walk(table, context.parallel_for, [&](size_t i, int64_t begin, int64_t end) {
    kernels.sgd_step(table.rows[i], begin, end, scalars, kind, context.options);
  });
}

}  // namespace lightning_mp::cpu
