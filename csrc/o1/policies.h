// The cast policies of O1 on the arguments of an operator, as they lie on the dispatcher's stack.
// What each policy does to an operator is in kernels.cpp; which operator has which policy is data,
// in lightning_mp/amp/dispatcher_ops.py.
#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <utility>
#include <vector>

namespace lightning_mp::o1 {

enum class Policy {
  kHalf,           // all in autocast's dtype; weights through autocast's cache
  kFloat32,        // all in float32
  kPromote,        // float32 where half and float32 meet, else the incoming types
  kMatchFirst,     // in place: all in the type of the first, which is written to
  kBanned,         // refused if one is half
  kBannedInPlace,  // refused if the first, which is written to, is half
  kKeep,           // the incoming types, inside as well
};

inline bool is_half(at::ScalarType type) { return type == at::kHalf || type == at::kBFloat16; }

// Which dtypes are among the arguments. A tensor of another device counts as well: half on the
// accelerator times a float32 scalar of the CPU is a mixture.
struct SeenTypes {
  bool has_half = false;
  bool has_float32 = false;

  bool is_mixed() const { return has_half && has_float32; }

  void look(const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    has_half |= is_half(tensor.scalar_type());
    has_float32 |= tensor.scalar_type() == at::kFloat;
  }

  void look(const c10::IValue& value) {
    if (value.isTensor()) {
      look(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) look(tensor);
    } else if (value.isOptionalTensorList()) {
      for (const c10::IValue& element : value.toListRef()) look(element);
    }
  }
};

// Casts the half and float32 tensors of one device type, in place on the stack. float64, complex,
// float8 and integer tensors, and those of other devices, stay as they are.
template <c10::DeviceType device>
struct Cast {
  at::ScalarType wanted;
  bool is_cached;  // whether a weight may come from autocast's cache

  bool concerns(const at::Tensor& tensor) const {
    if (!tensor.defined() || tensor.device().type() != device) return false;
    const at::ScalarType type = tensor.scalar_type();
    return type != wanted && (is_half(type) || type == at::kFloat);
  }

  at::Tensor of(const at::Tensor& tensor) const {
    return is_cached ? at::autocast::cached_cast(wanted, tensor, device) : tensor.to(wanted);
  }

  void operator()(c10::IValue& value) const {
    if (value.isTensor()) {
      if (concerns(value.toTensor())) value = of(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> tensors = value.toTensorVector();
      for (at::Tensor& tensor : tensors) {
        if (concerns(tensor)) tensor = of(tensor);
      }
      value = std::move(tensors);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> tensors = value.toOptionalTensorList().copy();
      for (size_t i = 0; i < tensors.size(); ++i) {
        const std::optional<at::Tensor> tensor = tensors.get(i);
        if (tensor.has_value() && concerns(*tensor)) tensors.set(i, of(*tensor));
      }
      value = std::move(tensors);
    }
  }
};

}  // namespace lightning_mp::o1
