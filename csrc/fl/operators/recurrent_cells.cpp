// torch's recurrent networks call fused cells on every device but the CPU, which has none. These
// are made of other operators; the formulas are those of torch's LSTM and GRU documentation. Their
// backward takes what the forward has kept (the workspace), whose layout is ours to choose.
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/chunk.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros_like.h>

#include <tuple>
#include <vector>

#include "fl/dispatch/generic_kernels.h"
#include "fl/operators/registration.h"

namespace lightning_mp::fl {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Tensors = std::vector<Tensor>;

bool is_there(const OptionalTensor& tensor) { return tensor.has_value() && tensor->defined(); }

Tensor add_bias(const Tensor& gates, const OptionalTensor& bias) {
  return is_there(bias) ? at::add(gates, *bias) : gates;
}

Tensor one_minus(const Tensor& x) { return at::rsub(x, 1); }

Tensor product(const Tensor& first, const Tensor& second) { return at::mul(first, second); }

template <typename... Rest>
Tensor product(const Tensor& first, const Tensor& second, const Rest&... rest) {
  return product(at::mul(first, second), rest...);
}

// Derivatives of the activations, from their values.
Tensor sigmoid_slope(const Tensor& y) { return product(y, one_minus(y)); }

Tensor tanh_slope(const Tensor& y) { return one_minus(product(y, y)); }

Tensor sum_of_rows(const Tensor& x, bool is_wanted) {
  return is_wanted ? at::sum(x, /*dim=*/0, /*keepdim=*/false) : Tensor();
}

// Gates in the order input, forget, cell, output. Returns hidden and cell state, and the gates.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                             const Tensor& cx, const OptionalTensor& input_bias,
                                             const OptionalTensor& hidden_bias) {
  const Tensor gates =
      add_bias(at::add(add_bias(input_gates, input_bias), hidden_gates), hidden_bias);
  const Tensors chunks = at::chunk(gates, 4, 1);
  const Tensor input = at::sigmoid(chunks[0]);
  const Tensor forget = at::sigmoid(chunks[1]);
  const Tensor cell = at::tanh(chunks[2]);
  const Tensor output = at::sigmoid(chunks[3]);
  const Tensor cy = at::add(product(forget, cx), product(input, cell));
  const Tensor hy = product(output, at::tanh(cy));
  return {hy, cy, at::cat({input, forget, cell, output}, 1)};
}

// Returns the gradients of the gates, of the old cell state, and of a bias.
std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const OptionalTensor& grad_hy,
                                                      const OptionalTensor& grad_cy,
                                                      const Tensor& cx, const Tensor& cy,
                                                      const Tensor& workspace, bool has_bias) {
  const Tensors gates = at::chunk(workspace, 4, 1);
  const Tensor &input = gates[0], &forget = gates[1], &cell = gates[2], &output = gates[3];
  const Tensor tanh_cy = at::tanh(cy);
  const Tensor grad_hidden = is_there(grad_hy) ? *grad_hy : at::zeros_like(cy);
  Tensor grad_cell = product(grad_hidden, output, tanh_slope(tanh_cy));
  if (is_there(grad_cy)) grad_cell = at::add(grad_cell, *grad_cy);
  const Tensor grad_gates = at::cat(
      {product(grad_cell, cell, sigmoid_slope(input)),
       product(grad_cell, cx, sigmoid_slope(forget)), product(grad_cell, input, tanh_slope(cell)),
       product(grad_hidden, tanh_cy, sigmoid_slope(output))},
      1);
  return {grad_gates, product(grad_cell, forget), sum_of_rows(grad_gates, has_bias)};
}

// Gates in the order reset, update, new. Returns the hidden state, and what backward needs.
std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                    const Tensor& hx, const OptionalTensor& input_bias,
                                    const OptionalTensor& hidden_bias) {
  const Tensors of_input = at::chunk(add_bias(input_gates, input_bias), 3, 1);
  const Tensors of_hidden = at::chunk(add_bias(hidden_gates, hidden_bias), 3, 1);
  const Tensor reset = at::sigmoid(at::add(of_input[0], of_hidden[0]));
  const Tensor update = at::sigmoid(at::add(of_input[1], of_hidden[1]));
  const Tensor fresh = at::tanh(at::add(of_input[2], product(reset, of_hidden[2])));
  const Tensor hy = at::add(fresh, product(update, at::sub(hx, fresh)));
  return {hy, at::cat({reset, update, fresh, hx, of_hidden[2]}, 1)};
}

// Returns the gradients of the gates of input and hidden state, of the old state, of both biases.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy,
                                                                     const Tensor& workspace,
                                                                     bool has_bias) {
  const Tensors kept = at::chunk(workspace, 5, 1);
  const Tensor &reset = kept[0], &update = kept[1], &fresh = kept[2], &hx = kept[3];
  const Tensor grad_fresh = product(grad_hy, one_minus(update), tanh_slope(fresh));
  const Tensor grad_update = product(grad_hy, at::sub(hx, fresh), sigmoid_slope(update));
  const Tensor grad_reset = product(grad_fresh, kept[4], sigmoid_slope(reset));
  const Tensor of_input = at::cat({grad_reset, grad_update, grad_fresh}, 1);
  const Tensor of_hidden = at::cat({grad_reset, grad_update, product(grad_fresh, reset)}, 1);
  return {of_input, of_hidden, product(grad_hy, update), sum_of_rows(of_input, has_bias),
          sum_of_rows(of_hidden, has_bias)};
}

}  // namespace

void define_recurrent_cells(torch::Library& library) {
  library.def(
      "lstm_cell(Tensor input_gates, Tensor hidden_gates, Tensor cx, Tensor? input_bias, Tensor? "
      "hidden_bias) -> (Tensor, Tensor, Tensor)",
      lstm_cell);
  library.def(
      "lstm_cell_backward(Tensor? grad_hy, Tensor? grad_cy, Tensor cx, Tensor cy, Tensor "
      "workspace, "
      "bool has_bias) -> (Tensor, Tensor, Tensor)",
      lstm_cell_backward);
  library.def(
      "gru_cell(Tensor input_gates, Tensor hidden_gates, Tensor hx, Tensor? input_bias, Tensor? "
      "hidden_bias) -> (Tensor, Tensor)",
      gru_cell);
  library.def(
      "gru_cell_backward(Tensor grad_hy, Tensor workspace, bool has_bias) -> (Tensor, Tensor, "
      "Tensor, Tensor, Tensor)",
      gru_cell_backward);
}

void register_recurrent_cells() {
  add_built_in_kernel("aten::_thnn_fused_lstm_cell", "lightning_mp_fl::lstm_cell");
  add_built_in_kernel("aten::_thnn_fused_lstm_cell_backward_impl",
                      "lightning_mp_fl::lstm_cell_backward");
  add_built_in_kernel("aten::_thnn_fused_gru_cell", "lightning_mp_fl::gru_cell");
  add_built_in_kernel("aten::_thnn_fused_gru_cell_backward", "lightning_mp_fl::gru_cell_backward");
}

}  // namespace lightning_mp::fl
