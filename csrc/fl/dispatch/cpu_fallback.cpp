#include "fl/dispatch/cpu_fallback.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_to_copy_ops.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/resize_ops.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <utility>

#include "fl/dispatch/boxed_call.h"
#include "fl/runtime/generator.h"

namespace lightning_mp::fl {
namespace {

at::Tensor copy_to(const at::Tensor& tensor, c10::Device device) {
  return at::_ops::_to_copy::call(tensor, /*dtype=*/std::nullopt, /*layout=*/std::nullopt, device,
                                  /*pin_memory=*/std::nullopt, /*non_blocking=*/false,
                                  at::MemoryFormat::Preserve);
}

}  // namespace

CpuCall::CpuCall(OperatorInfo& info, const Device& device, torch::jit::Stack* stack)
    : info_(info), device_(device), stack_(stack) {}

void CpuCall::run(const c10::OperatorHandle& op) {
  const c10::impl::ExcludeDispatchKeyGuard below(kAboveBackend);
  const size_t num_arguments = info_.arguments.size();
  c10::IValue* const first = stack_->data() + (stack_->size() - num_arguments);
  for (size_t i = 0; i < num_arguments; ++i) replace(first[i], info_.arguments[i]);
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack_);
  for (const CopiedArgument& argument : arguments_) {
    if (argument.is_written) write_back(argument);
  }
  wrap_results();
  info_.count(device_.spec.index, Route::kCpu, num_copied_bytes_);
}

void CpuCall::replace(c10::IValue& value, Argument argument) {
  if (argument.kind == ArgumentKind::kTensor && value.isTensor()) {
    value = to_cpu(value.toTensor(), argument.is_written);
  } else if (argument.kind == ArgumentKind::kTensorList && value.isList()) {
    c10::List<at::Tensor> copies;
    for (const c10::IValue& element : value.toListRef()) {
      copies.push_back(to_cpu(element.toTensor(), argument.is_written));
    }
    value = std::move(copies);
  } else if (argument.kind == ArgumentKind::kOptionalTensorList && value.isList()) {
    c10::List<std::optional<at::Tensor>> copies;
    for (const c10::IValue& element : value.toListRef()) {
      copies.push_back(element.isTensor() ? std::optional<at::Tensor>(
                                                to_cpu(element.toTensor(), argument.is_written))
                                          : std::nullopt);
    }
    value = std::move(copies);
  } else if (argument.kind == ArgumentKind::kGenerator) {
    std::optional<at::Generator> given;
    if (!value.isNone()) given = value.toGenerator();
    TORCH_CHECK_NOT_IMPLEMENTED(device_.is_host(), "random numbers of ", info_.name, " on ",
                                device_.fl(),
                                " = not available from the CPU, whose generators are "
                                "others; draw them on the CPU and move them");
    value = native_generator(given, device_);
  } else if (value.isDevice() && value.toDevice().is_privateuseone()) {
    value = c10::Device(c10::kCPU);
  }
}

at::Tensor CpuCall::to_cpu(const at::Tensor& tensor, bool is_written) {
  if (!tensor.defined()) return tensor;
  check_device(info_, device_, tensor.unsafeGetTensorImpl());
  if (!is_fl(tensor.unsafeGetTensorImpl())) {
    foreign_.push_back(tensor);
    return tensor;
  }
  for (CopiedArgument& argument : arguments_) {
    if (!argument.original.is_same(tensor)) continue;
    argument.is_written |= is_written;
    return argument.copy;
  }
  check_written(tensor, is_written);
  at::Tensor copy = copy_to(native_of(tensor), c10::kCPU);
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    copy.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  num_copied_bytes_ += static_cast<int64_t>(tensor.nbytes());
  arguments_.push_back({tensor, copy, is_written});
  return copy;
}

void CpuCall::check_written(const at::Tensor& tensor, bool is_written) const {
  for (const CopiedArgument& argument : arguments_) {
    const bool is_safe = !is_written || !argument.is_written ||
                         storage_of(argument.original.unsafeGetTensorImpl()) !=
                             storage_of(tensor.unsafeGetTensorImpl());
    TORCH_CHECK_NOT_IMPLEMENTED(is_safe, "CPU fallback of ", info_.name, " on ", device_.fl(),
                                " that writes two tensors of one storage = not available, as each "
                                "would be copied; write them one after the other");
  }
}

void CpuCall::write_back(const CopiedArgument& argument) {
  const NativeScope scope(device_.spec.index);
  const at::Tensor alias = native_of(argument.original);
  if (alias.sizes() != argument.copy.sizes()) {
    at::_ops::resize_::call(alias, argument.copy.sym_sizes(), std::nullopt);
  }
  at::Tensor target = alias;
  at::_ops::copy_::call(target, argument.copy, /*non_blocking=*/false);
  refresh_from_alias(argument.original.unsafeGetTensorImpl(), alias.unsafeGetTensorImpl(), device_);
  num_copied_bytes_ += static_cast<int64_t>(argument.copy.nbytes());
}

at::Tensor CpuCall::to_device(const at::Tensor& result) {
  if (!result.defined()) return result;
  for (const CopiedArgument& argument : arguments_) {
    if (argument.copy.is_same(result)) return argument.original;
  }
  for (const at::Tensor& tensor : foreign_) {
    if (tensor.is_same(result)) return result;
  }
  const NativeScope scope(device_.spec.index);
  at::Tensor copy = copy_to(result, device_.spec.native);
  num_copied_bytes_ += static_cast<int64_t>(result.nbytes());
  adopt(copy.unsafeGetTensorImpl(), device_, /*facade=*/nullptr);
  return copy;
}

void CpuCall::wrap_results() {
  const size_t num_results = info_.results.size();
  c10::IValue* const first = stack_->data() + (stack_->size() - num_results);
  for (size_t i = 0; i < num_results; ++i) {
    if (static_cast<int>(i) == info_.host_result) continue;
    c10::IValue& value = first[i];
    if (info_.results[i] == ArgumentKind::kTensor && value.isTensor()) {
      value = to_device(value.toTensor());
    } else if (info_.results[i] == ArgumentKind::kTensorList) {
      c10::List<at::Tensor> list = value.toTensorList();
      for (size_t j = 0; j < list.size(); ++j) list.set(j, to_device(list.get(j)));
    }
  }
}

}  // namespace lightning_mp::fl
