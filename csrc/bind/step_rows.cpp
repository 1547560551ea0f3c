#include "bind/step_rows.h"

#include <limits>

namespace lightning_mp::bind {
namespace {

// Places in the list of lists.
enum List { kWeights = 0, kGradients = 1, kCopies = 2, kStates = 3 };

}  // namespace

ListInfos check_step(const StepArguments& arguments) {
  const char* op = arguments.op;
  std::vector<TensorList> lists = {
      {"weights", arguments.weights, {DType::kFloat32, DType::kInt16}, false, true},
      {"gradients", arguments.gradients, kFloating, false, arguments.options.zero_gradients},
      {"copies", arguments.copies, {DType::kBFloat16, DType::kFloat16}, true, true}};
  for (const StateList& state : arguments.states) {
    lists.push_back({state.name, state.tensors, {DType::kFloat32}, false, true});
  }
  ListInfos infos = check_lists(op, lists);
  for (size_t i = 0; i < arguments.weights.size(); ++i) {
    const TensorInfo& copy = infos[kCopies][i];
    const TensorInfo& weight = infos[kWeights][i];
    if (weight.dtype == DType::kInt16 && weight.numel > 0 &&
        (copy.dtype != DType::kBFloat16 || copy.numel == 0)) {
      const std::string index = "[" + std::to_string(i) + "]";
      refuse(op,
             "copies" + index + " is " + dtype_name(arguments.copies[i]) + " with " +
                 std::to_string(copy.numel) + " elements",
             "bfloat16, the upper half of weights" + index + ",");
    }
  }
  check_scalars(op, infos,
                {{"factor", arguments.factor},
                 {"found_inf", arguments.found_inf},
                 {"lr_tensor", arguments.lr_tensor}});
  check_range(op, "lr", arguments.lr);
  check_positive(op, "clip_value", arguments.clip_value);
  return infos;
}

RowTable step_rows(const StepArguments& arguments, const ListInfos& infos, Layouts& layouts) {
  RowTable table;
  table.rows.reserve(arguments.weights.size());
  for (size_t i = 0; i < arguments.weights.size(); ++i) {
    const TensorInfo& pivot = infos[kWeights][i];
    TensorRow row = {};
    row.numel = pivot.numel;
    layouts.place(row, kWeight, arguments.weights[i], pivot, pivot, true, true);
    layouts.place(row, kGradient, arguments.gradients[i], infos[kGradients][i], pivot, true,
                  arguments.options.zero_gradients);
    if (infos[kCopies][i].numel > 0) {
      // A step that may turn out to change nothing has to write back what was there.
      const bool is_read = pivot.dtype == DType::kInt16 || arguments.options.adopt ||
                           arguments.found_inf != nullptr;
      layouts.place(row, kCopy, arguments.copies[i], infos[kCopies][i], pivot, is_read, true);
    }
    for (size_t k = 0; k < arguments.states.size(); ++k) {
      layouts.place(row, kFirstState + static_cast<int>(k), arguments.states[k].tensors[i],
                    infos[kStates + k][i], pivot, true, true);
    }
    table.add(row);
  }
  return table;
}

float clip_bound(const StepArguments& arguments) {
  return arguments.clip_value ? static_cast<float>(*arguments.clip_value)
                              : std::numeric_limits<float>::infinity();
}

}  // namespace lightning_mp::bind
