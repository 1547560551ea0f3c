// What the steps of all optimizers share: checks, and the table of rows.
#pragma once

#include <optional>
#include <vector>

#include "bind/checks.h"
#include "bind/rows.h"
#include "common/parameters.h"

namespace lightning_mp::bind {

// States of an optimizer, one tensor per weight.
struct StateList {
  const char* name;
  const TensorHandles& tensors;
  // The types that are allowed, by bit(); one for all tensors of all states.
  unsigned dtypes = kFloat32Only;
};

struct StepArguments {
  const char* op;
  const TensorHandles& gradients;
  const TensorHandles& weights;
  const TensorHandles& copies;
  std::vector<StateList> states;
  const std::optional<Tensor>& factor;
  const std::optional<Tensor>& found_inf;
  const std::optional<Tensor>& lr_tensor;
  double lr;
  std::optional<double> clip_value;
  StepOptions options;
};

// Throws for what does not fit, with nothing written. `stand_ins` has to live until the step is
// done, and to write back then.
RowTable step_rows(const StepArguments& arguments, StandIns& stand_ins);

// Infinity for none.
float clip_bound(const StepArguments& arguments);

}  // namespace lightning_mp::bind
