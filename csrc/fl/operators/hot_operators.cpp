// The operators of small models and of optimizers: one line each.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_softmax_backward_data_ops.h>
#include <ATen/ops/_softmax_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/fill_ops.h>
#include <ATen/ops/gelu_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/native_layer_norm_backward_ops.h>
#include <ATen/ops/native_layer_norm_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/threshold_backward_ops.h>
#include <ATen/ops/zero_ops.h>

#include "fl/operators/hot_kernel.h"
#include "fl/operators/registration.h"

namespace lightning_mp::fl {

void register_hot_operators(torch::Library& aten) {
  register_hot<at::_ops::_softmax>(aten);
  register_hot<at::_ops::_softmax_backward_data>(aten);
  register_hot<at::_ops::add_Tensor>(aten);
  register_hot<at::_ops::add__Tensor>(aten);
  register_hot<at::_ops::addmm>(aten);
  register_hot<at::_ops::bmm>(aten);
  register_hot<at::_ops::div_Tensor>(aten);
  register_hot<at::_ops::fill__Scalar>(aten);
  register_hot<at::_ops::gelu>(aten);
  register_hot<at::_ops::mm>(aten);
  register_hot<at::_ops::mul_Tensor>(aten);
  register_hot<at::_ops::mul__Tensor>(aten);
  register_hot<at::_ops::native_layer_norm>(aten);
  register_hot<at::_ops::native_layer_norm_backward>(aten);
  register_hot<at::_ops::relu>(aten);
  register_hot<at::_ops::sub_Tensor>(aten);
  register_hot<at::_ops::sum_dim_IntList>(aten);
  register_hot<at::_ops::threshold_backward>(aten);
  register_hot<at::_ops::zero_>(aten);
}

}  // namespace lightning_mp::fl
