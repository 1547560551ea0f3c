#include "fl/dispatch/boxed_call.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <utility>

#include "fl/dispatch/routes.h"
#include "fl/runtime/generator.h"
#include "fl/runtime/slowdown.h"

namespace lightning_mp::fl {

using torch::jit::Stack;

void check_foreign_device(const OperatorInfo& info, const Device& device,
                          const c10::TensorImpl* tensor) {
  const bool is_allowed =
      !is_fl(tensor) && (!tensor->is_cpu() || tensor->dim() == 0 || info.may_mix_devices);
  TORCH_CHECK(is_allowed,
              "Expected all tensors to be on the same device, but found at least two "
              "devices, ",
              device.fl(), " and ", tensor->device(), "! (", info.name,
              "); move one of them with .to()");
}

namespace {

// The first fl tensor among elements of a list, or null.
const c10::TensorImpl* find_fl(c10::ArrayRef<c10::IValue> elements) {
  for (const c10::IValue& element : elements) {
    if (!element.isTensor()) continue;
    const c10::TensorImpl* const tensor = element.toTensor().unsafeGetTensorImpl();
    if (is_fl(tensor)) return tensor;
  }
  return nullptr;
}

// The device of the first argument that has one; the current device if none does.
const Device& device_of_call(const OperatorInfo& info, const Stack& stack) {
  const size_t num_arguments = info.arguments.size();
  const c10::IValue* const first = stack.data() + (stack.size() - num_arguments);
  for (size_t i = 0; i < num_arguments; ++i) {
    const c10::IValue& value = first[i];
    const c10::TensorImpl* tensor = nullptr;
    if (value.isTensor()) {
      tensor = find_fl({value});
    } else if (info.arguments[i].kind == ArgumentKind::kTensorList ||
               info.arguments[i].kind == ArgumentKind::kOptionalTensorList) {
      if (value.isList()) tensor = find_fl(value.toListRef());
    } else if (value.isDevice() && value.toDevice().is_privateuseone()) {
      return device_at(resolve_index(value.toDevice().index()));
    } else if (value.isGenerator() && value.toGenerator().device().is_privateuseone()) {
      return device_at(resolve_index(value.toGenerator().device().index()));
    }
    if (tensor != nullptr) return device_at(tensor->device().index());
  }
  return device_at(current_device());
}

}  // namespace

void call_boxed(OperatorInfo& info, const c10::OperatorHandle& op, Stack* stack) {
  const Device& device = device_of_call(info, *stack);
  const Route route = choose_route(info, op, device, *stack);
  if (C10_LIKELY(route == Route::kNative)) return NativeCall(info, device, stack).run(op);
  call_elsewhere(route, info, op, device, stack);
}

NativeCall::NativeCall(OperatorInfo& info, const Device& device, Stack* stack, Route route)
    : info_(info), device_(device), stack_(stack), route_(route) {}

void NativeCall::run(const c10::OperatorHandle& op) {
  const size_t num_arguments = info_.arguments.size();
  c10::IValue* const first = stack_->data() + (stack_->size() - num_arguments);
  for (size_t i = 0; i < num_arguments; ++i) replace(first[i], info_.arguments[i]);
  info_.count(device_.spec.index, route_);
  {
    const NativeScope scope(device_.spec.index);
    const Slowdown slowdown(device_);
    const c10::impl::ExcludeDispatchKeyGuard below(kAboveBackend);
    op.redispatchBoxed(c10::DispatchKeySet(device_.native_key), stack_);
  }
  if (info_.has_written) {
    for (const AliasedArgument& argument : arguments_) {
      if (!argument.is_written) continue;
      refresh_from_alias(argument.original.get(), argument.alias.get(), device_);
    }
  }
  wrap_results();
}

void NativeCall::replace(c10::IValue& value, Argument argument) {
  switch (argument.kind) {
    case ArgumentKind::kOther:
      return;
    case ArgumentKind::kTensor:
      if (!value.isTensor()) return;
      if (auto alias = alias_of(value.toTensor(), argument.is_written)) value = *std::move(alias);
      return;
    case ArgumentKind::kTensorList:
      if (!value.isNone()) replace_list(value, argument.is_written);
      return;
    case ArgumentKind::kOptionalTensorList:
      if (!value.isNone()) replace_optional_list(value, argument.is_written);
      return;
    case ArgumentKind::kGenerator:
      return replace_generator(value);
    case ArgumentKind::kDevice:
      return replace_device(value);
  }
}

void NativeCall::replace_list(c10::IValue& value, bool is_written) {
  c10::List<at::Tensor> aliases;
  const c10::ArrayRef<c10::IValue> elements = value.toListRef();
  aliases.reserve(elements.size());
  for (const c10::IValue& element : elements) {
    const at::Tensor& tensor = element.toTensor();
    auto alias = alias_of(tensor, is_written);
    aliases.push_back(alias ? *std::move(alias) : tensor);
  }
  value = std::move(aliases);
}

void NativeCall::replace_optional_list(c10::IValue& value, bool is_written) {
  c10::List<std::optional<at::Tensor>> aliases;
  const c10::ArrayRef<c10::IValue> elements = value.toListRef();
  aliases.reserve(elements.size());
  for (const c10::IValue& element : elements) {
    if (!element.isTensor()) {
      aliases.push_back(std::nullopt);
      continue;
    }
    const at::Tensor& tensor = element.toTensor();
    auto alias = alias_of(tensor, is_written);
    aliases.push_back(alias ? std::move(alias) : std::optional<at::Tensor>(tensor));
  }
  value = std::move(aliases);
}

void NativeCall::replace_generator(c10::IValue& value) {
  std::optional<at::Generator> given;
  if (!value.isNone()) given = value.toGenerator();
  value = native_generator(given, device_);
}

void NativeCall::replace_device(c10::IValue& value) {
  if (value.isDevice() && value.toDevice().is_privateuseone()) value = device_.spec.native;
}

std::optional<at::Tensor> NativeCall::alias_of(const at::Tensor& tensor, bool is_written) {
  if (!tensor.defined()) return std::nullopt;
  const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  check_device(info_, device_, impl);
  if (C10_UNLIKELY(!is_fl(impl))) {
    foreign_.push_back(tensor.getIntrusivePtr());
    return std::nullopt;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(impl->layout() == c10::kStrided, info_.name,
                              " of a tensor of layout ", impl->layout(), " on ", device_.fl(),
                              "; the strided layout is allowed; call .to_dense() on the CPU first");
  if (is_written) {
    // The same tensor twice, as in add(a, a, out=a), has to be the same object twice.
    for (const AliasedArgument& argument : arguments_) {
      if (argument.original.get() == impl) return at::Tensor(argument.alias);
    }
  }
  TensorPtr alias = make_alias(impl, device_);
  arguments_.push_back({tensor.getIntrusivePtr(), alias, is_written});
  return at::Tensor(std::move(alias));
}

void NativeCall::wrap_results() {
  const size_t num_results = info_.results.size();
  c10::IValue* const first = stack_->data() + (stack_->size() - num_results);
  for (size_t i = 0; i < num_results; ++i) {
    if (static_cast<int>(i) == info_.host_result) continue;
    c10::IValue& value = first[i];
    if (info_.results[i] == ArgumentKind::kTensor && value.isTensor()) {
      value = wrap(value.toTensor());
    } else if (info_.results[i] == ArgumentKind::kTensorList) {
      c10::List<at::Tensor> list = value.toTensorList();
      for (size_t j = 0; j < list.size(); ++j) list.set(j, wrap(list.get(j)));
    }
  }
}

at::Tensor NativeCall::wrap(const at::Tensor& result) {
  if (!result.defined()) return result;
  c10::TensorImpl* const impl = result.unsafeGetTensorImpl();
  for (const AliasedArgument& argument : arguments_) {
    if (argument.alias.get() == impl) return at::Tensor(argument.original);
  }
  if (C10_UNLIKELY(is_fl(impl))) return result;
  TORCH_CHECK_NOT_IMPLEMENTED(impl->has_storage() && impl->layout() == c10::kStrided, info_.name,
                              " on ", device_.fl(), " with a result of layout ", impl->layout(),
                              "; the strided layout is allowed; compute it on the CPU");
  for (const TensorPtr& tensor : foreign_) {
    if (tensor.get() == impl ||
        (tensor->has_storage() && storage_of(tensor.get()) == storage_of(impl))) {
      return result;
    }
  }
  const c10::Storage* const facade = facade_for(storage_of(impl));
  adopt(impl, device_, facade);
  if (facade == nullptr) wrapped_.push_back(impl);
  return result;
}

const c10::Storage* NativeCall::facade_for(const c10::StorageImpl* twin) const {
  for (const AliasedArgument& argument : arguments_) {
    if (storage_of(argument.alias.get()) == twin) return &argument.original->unsafe_storage();
  }
  for (const c10::TensorImpl* const tensor : wrapped_) {
    if (find_twin(storage_of(tensor)) == twin) return &tensor->unsafe_storage();
  }
  return nullptr;
}

}  // namespace lightning_mp::fl
