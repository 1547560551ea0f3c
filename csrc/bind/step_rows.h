// What the steps of all optimizers share: checks, and the table of rows.
#pragma once

#include <optional>
#include <vector>

#include "bind/checks.h"
#include "bind/layouts.h"
#include "common/parameters.h"
#include "common/row_table.h"

namespace lightning_mp::bind {

using Tensors = std::vector<Tensor>;

// States of an optimizer, one tensor per weight.
struct StateList {
  const char* name;
  const Tensors& tensors;
};

struct StepArguments {
  const char* op;
  const Tensors& gradients;
  const Tensors& weights;
  const Tensors& copies;
  std::vector<StateList> states;
  // Null for what was not given.
  const Tensor* factor;
  const Tensor* found_inf;
  const Tensor* lr_tensor;
  double lr;
  std::optional<double> clip_value;
  StepOptions options;
};

// Throws for what does not fit; reads only metadata.
ListInfos check_step(const StepArguments& arguments);

// The table of the rows; `layouts` has to live until the step is done, and to write back then.
RowTable step_rows(const StepArguments& arguments, const ListInfos& infos, Layouts& layouts);

// Infinity for none.
float clip_bound(const StepArguments& arguments);

}  // namespace lightning_mp::bind
