// One call of an operator on fl tensors, whatever its signature.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>

#include "fl/dispatch/alias.h"
#include "fl/dispatch/operator_info.h"

namespace lightning_mp::fl {

// Computes the operator for the arguments on the stack, and leaves its results there.
void call_boxed(OperatorInfo& info, const c10::OperatorHandle& op, torch::jit::Stack* stack);

// Runs the native kernel: arguments become aliases, results fl tensors.
class NativeCall {
 public:
  // Counted as the route: the CPU fallback of a device of the host is a native call as well.
  NativeCall(OperatorInfo& info, const Device& device, torch::jit::Stack* stack,
             Route route = Route::kNative);

  void run(const c10::OperatorHandle& op);

 private:
  struct AliasedArgument {
    TensorPtr original;
    TensorPtr alias;
    bool is_written;
  };

  void replace(c10::IValue& value, Argument argument);
  void replace_list(c10::IValue& value, bool is_written);
  void replace_optional_list(c10::IValue& value, bool is_written);
  void replace_generator(c10::IValue& value);
  void replace_device(c10::IValue& value);
  // The alias of an fl tensor, or none for a tensor that stays as it is.
  std::optional<at::Tensor> alias_of(const at::Tensor& tensor, bool is_written);

  void wrap_results();
  // What stands for a native result: an argument, or the tensor itself, which is then one of fl.
  at::Tensor wrap(const at::Tensor& result);
  const c10::Storage* facade_for(const c10::StorageImpl* twin) const;

  OperatorInfo& info_;
  const Device& device_;
  torch::jit::Stack* const stack_;
  const Route route_;
  c10::SmallVector<AliasedArgument, 8> arguments_;
  c10::SmallVector<TensorPtr, 2> foreign_;         // tensors of the CPU among the arguments
  c10::SmallVector<c10::TensorImpl*, 4> wrapped_;  // results with a facade of their own
};

void check_foreign_device(const OperatorInfo& info, const Device& device,
                          const c10::TensorImpl* tensor);

// Refuses a tensor of another device than the call's, with the exceptions that CUDA makes: tensors
// of the CPU may hold a single number, or what the operator takes from the CPU by design.
inline void check_device(const OperatorInfo& info, const Device& device,
                         const c10::TensorImpl* tensor) {
  if (C10_LIKELY(is_fl(tensor) && tensor->device().index() == device.spec.index)) return;
  check_foreign_device(info, device, tensor);
}

}  // namespace lightning_mp::fl
