// lightning_mp::cross_entropy_forward and cross_entropy_backward up to where a device runs them.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <optional>
#include <tuple>

#include "bind/tensor_info.h"
#include "common/cross_entropy.h"

namespace lightning_mp::bind {

using torch::stable::Tensor;

// What both operations are given.
struct CrossEntropyArguments {
  Tensor logits;
  Tensor target;
  std::optional<Tensor> weight;
  int64_t ignore_index;
  double label_smoothing;
};

struct CrossEntropyForwardCall {
  const Tensor& logits;
  const CrossEntropyInputs& inputs;
  const Tensor& losses;
  const Tensor& statistics;
};

struct CrossEntropyBackwardCall {
  const Tensor& logits;
  const CrossEntropyInputs& inputs;
  const Tensor& gradient;
  const Tensor& statistics;
  const Tensor& result;
};

// Checks the arguments and copies what is not laid out as kernels read it: the inputs point into
// `arguments` from then on.
CrossEntropyInputs checked_inputs(const char* op, CrossEntropyArguments& arguments);

// The same for what backward is given beside them.
void check_backward(const char* op, const Tensor& logits, Tensor& gradient, Tensor& statistics);

template <void (*run)(const CrossEntropyForwardCall&)>
std::tuple<Tensor, Tensor> cross_entropy_forward(Tensor logits, Tensor target,
                                                 std::optional<Tensor> weight, int64_t ignore_index,
                                                 double label_smoothing) {
  CrossEntropyArguments arguments = {logits, target, weight, ignore_index, label_smoothing};
  const CrossEntropyInputs inputs = checked_inputs("cross_entropy_forward", arguments);
  const auto float32 = torch::headeronly::ScalarType::Float;
  const Tensor losses = torch::stable::new_empty(logits, {inputs.num_rows}, float32);
  const Tensor statistics = torch::stable::new_empty(logits, {inputs.num_rows, 3}, float32);
  if (inputs.num_rows > 0) run({arguments.logits, inputs, losses, statistics});
  return {losses, statistics};
}

template <void (*run)(const CrossEntropyBackwardCall&)>
Tensor cross_entropy_backward(Tensor gradient, Tensor logits, Tensor target, Tensor statistics,
                              std::optional<Tensor> weight, int64_t ignore_index,
                              double label_smoothing) {
  constexpr const char* op = "cross_entropy_backward";
  CrossEntropyArguments arguments = {logits, target, weight, ignore_index, label_smoothing};
  const CrossEntropyInputs inputs = checked_inputs(op, arguments);
  check_backward(op, logits, gradient, statistics);
  const Tensor result =
      torch::stable::new_empty(logits, {inputs.num_rows, inputs.num_classes}, std::nullopt);
  if (inputs.num_rows > 0) run({arguments.logits, inputs, gradient, statistics, result});
  return result;
}

}  // namespace lightning_mp::bind
