#include "bind/step_rows.h"

#include <limits>

namespace lightning_mp::bind {
namespace {

void check_one_type(const StepArguments& arguments, const RowTable& table, size_t state) {
  for (size_t i = 0; i < table.rows.size(); ++i) {
    const DType dtype = table.rows[i].dtypes[kFirstState + state];
    const DType expected = table.rows[0].dtypes[kFirstState];
    if (dtype == expected) continue;
    refuse(arguments.op,
           std::string(arguments.states[state].name) + "[" + std::to_string(i) + "] is " +
               dtype_name(dtype),
           dtype_name(expected) + ", as " + arguments.states[0].name + "[0],");
  }
}

}  // namespace

RowTable step_rows(const StepArguments& arguments, StandIns& stand_ins) {
  const char* op = arguments.op;
  ScalarChecks scalars(op, arguments.weights);
  scalars.check("factor", arguments.factor);
  scalars.check("found_inf", arguments.found_inf);
  scalars.check("lr_tensor", arguments.lr_tensor);
  check_range(op, "lr", arguments.lr);
  check_positive(op, "clip_value", arguments.clip_value);

  std::vector<RowList> lists = {
      {"weights", arguments.weights, kWeight, kFloat32Only | bit(DType::kInt16), true, true},
      {"gradients", arguments.gradients, kGradient, kFloating, true,
       arguments.options.zero_gradients},
      {"copies", arguments.copies, kCopy, kHalfTypes, true, true, true}};
  int role = kFirstState;
  for (const StateList& state : arguments.states) {
    lists.push_back({state.name, state.tensors, role++, state.dtypes, true, true});
  }
  RowTable table = make_rows(op, lists, stand_ins);
  for (size_t k = 0; k < arguments.states.size(); ++k) check_one_type(arguments, table, k);
  for (size_t i = 0; i < table.rows.size(); ++i) {
    const TensorRow& row = table.rows[i];
    if (row.numel == 0 || row.dtypes[kWeight] != DType::kInt16) continue;
    if (row.dtypes[kCopy] == DType::kBFloat16) continue;
    const std::string index = "[" + std::to_string(i) + "]";
    refuse(op, "copies" + index + " is " + dtype_name(row.dtypes[kCopy]),
           "bfloat16, the upper half of weights" + index + ",");
  }
  return table;
}

float clip_bound(const StepArguments& arguments) {
  return arguments.clip_value ? static_cast<float>(*arguments.clip_value)
                              : std::numeric_limits<float>::infinity();
}

}  // namespace lightning_mp::bind
