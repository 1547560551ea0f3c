// Kernels with the signature of their operator, for operators that are called most: they spare the
// boxing of arguments. Everything that is not the plain native case goes the boxed way.
#pragma once

#include <ATen/core/boxing/impl/boxing.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "fl/dispatch/boxed_call.h"
#include "fl/dispatch/routes.h"

namespace lightning_mp::fl {

// Arguments of one call: the fl tensors, and the aliases that native code gets instead.
class HotCall {
 public:
  HotCall(const OperatorInfo& info, const Device& device) : info_(info), device_(device) {}

  template <typename T>
  T&& alias(T&& argument) {
    return std::forward<T>(argument);
  }

  at::Tensor alias(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
    check_device(info_, device_, impl);
    if (!is_fl(impl)) return tensor;
    at::Tensor alias(make_alias(impl, device_));
    aliases_.push_back({&tensor, alias.unsafeGetTensorImpl()});
    return alias;
  }

  at::Tensor alias(at::Tensor& tensor) { return alias(std::as_const(tensor)); }

  std::optional<at::Tensor> alias(const std::optional<at::Tensor>& tensor) {
    return tensor.has_value() ? std::optional<at::Tensor>(alias(*tensor)) : std::nullopt;
  }

  // In-place operators return the argument that they have written. Its sizes are as before, but the
  // first write to a lazy clone gives it memory of its own.
  at::Tensor& result(at::Tensor& native) {
    for (const auto& [original, alias] : aliases_) {
      if (alias != native.unsafeGetTensorImpl()) continue;
      refresh_facade(storage_of(original->unsafeGetTensorImpl()), device_);
      return const_cast<at::Tensor&>(*original);
    }
    return native;
  }

  at::Tensor result(at::Tensor&& native) {
    if (!native.defined()) return std::move(native);
    c10::TensorImpl* const impl = native.unsafeGetTensorImpl();
    for (const auto& [original, alias] : aliases_) {
      if (alias == impl) return *original;
      if (storage_of(alias) != storage_of(impl)) continue;
      adopt(impl, device_, &original->unsafeGetTensorImpl()->unsafe_storage());
      return std::move(native);
    }
    adopt(impl, device_, /*facade=*/nullptr);
    return std::move(native);
  }

  template <typename... Ts>
  std::tuple<Ts...> result(std::tuple<Ts...>&& natives) {
    return std::apply(
        [this](auto&&... native) { return std::tuple<Ts...>(result(std::move(native))...); },
        std::move(natives));
  }

 private:
  const OperatorInfo& info_;
  const Device& device_;
  c10::SmallVector<std::pair<const at::Tensor*, c10::TensorImpl*>, 6> aliases_;
};

// The first fl tensor among arguments of any types, or null.
inline const c10::TensorImpl* first_fl() { return nullptr; }

template <typename First, typename... Rest>
const c10::TensorImpl* first_fl(const First& first, const Rest&... rest) {
  if constexpr (std::is_same_v<First, at::Tensor>) {
    const c10::TensorImpl* const tensor = first.unsafeGetTensorImpl();
    if (is_fl(tensor)) return tensor;
  }
  return first_fl(rest...);
}

// Op is a type of at::_ops.
template <typename Op, typename Signature = typename Op::schema>
struct HotKernel;

template <typename Op, typename Result, typename... Arguments>
struct HotKernel<Op, Result(Arguments...)> {
  static inline OperatorInfo* info = nullptr;
  static inline c10::OperatorHandle* handle = nullptr;

  static Result call(c10::DispatchKeySet keys, Arguments... arguments) {
    const c10::TensorImpl* const tensor = first_fl(arguments...);
    if (C10_LIKELY(tensor != nullptr)) {
      const int index = tensor->device().index();
      const Device& device = device_at(index);
      const bool is_plain = device.has_all_dtypes && !device.is_slowed() &&
                            info->route(index).load(std::memory_order_relaxed) == Route::kNative;
      if (C10_LIKELY(is_plain)) return call_native(device, std::forward<Arguments>(arguments)...);
    }
    static const c10::BoxedKernel boxed = c10::BoxedKernel::makeFromFunction<&call_as_boxed>();
    return c10::impl::BoxedKernelWrapper<Result(Arguments...)>::call(
        boxed, *handle, keys, std::forward<Arguments>(arguments)...);
  }

 private:
  static void call_as_boxed(const c10::OperatorHandle& op, c10::DispatchKeySet,
                            torch::jit::Stack* stack) {
    call_boxed(*info, op, stack);
  }

  static Result call_native(const Device& device, Arguments... arguments) {
    const int index = device.spec.index;
    HotCall call(*info, device);
    using Aliases = std::tuple<decltype(call.alias(std::forward<Arguments>(arguments)))...>;
    Aliases aliases{call.alias(std::forward<Arguments>(arguments))...};
    info->count(index, Route::kNative);
    const NativeScope scope(index);
    const c10::impl::ExcludeDispatchKeyGuard below(kAboveBackend);
    const c10::DispatchKeySet key(device.native_key);
    return std::apply(
        [&](auto&&... alias) -> Result {
          return call.result(Op::redispatch(key, static_cast<Arguments>(alias)...));
        },
        aliases);
  }
};

template <typename Op>
void register_hot(torch::Library& aten) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
  HotKernel<Op>::handle = new c10::OperatorHandle(op);
  HotKernel<Op>::info = add_operator_info(op);
  const std::string name = HotKernel<Op>::info->name.substr(std::string("aten::").size());
  aten.impl(name.c_str(), TORCH_FN(HotKernel<Op>::call));
}

}  // namespace lightning_mp::fl
