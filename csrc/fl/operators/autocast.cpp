// torch.autocast("fl"): the policies of torch, for any signature, at the Autocast key.
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <utility>

#include "fl/operators/registration.h"

namespace lightning_mp::fl {
namespace {

using torch::jit::Stack;

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
constexpr c10::DispatchKey kKey = c10::DispatchKey::AutocastPrivateUse1;

template <typename Function>
void for_each_tensor(const c10::OperatorHandle& op, Stack* stack, Function function) {
  const size_t num_arguments = op.schema().arguments().size();
  for (size_t i = stack->size() - num_arguments; i < stack->size(); ++i) {
    c10::IValue& value = (*stack)[i];
    if (value.isTensor() && value.toTensor().defined()) {
      function(value);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list = value.toTensorList().copy();
      for (size_t j = 0; j < list.size(); ++j) {
        c10::IValue element = list.get(j);
        function(element);
        list.set(j, element.toTensor());
      }
      value = std::move(list);
    }
  }
}

void cast_all(const c10::OperatorHandle& op, Stack* stack, at::ScalarType dtype) {
  for_each_tensor(op, stack, [dtype](c10::IValue& value) {
    value = at::autocast::cached_cast(dtype, value.toTensor(), kType);
  });
}

void lower(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(kKey);
  cast_all(op, stack, at::autocast::get_autocast_dtype(kType));
  op.callBoxed(stack);
}

void to_float32(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(kKey);
  cast_all(op, stack, at::kFloat);
  op.callBoxed(stack);
}

void promote(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(kKey);
  at::ScalarType widest = at::autocast::get_lower_precision_fp_from_device_type(kType);
  for_each_tensor(op, stack, [&widest](const c10::IValue& value) {
    if (value.toTensor().scalar_type() == at::kFloat) widest = at::kFloat;
  });
  cast_all(op, stack, widest);
  op.callBoxed(stack);
}

// Sums and the like: computed and returned in float32, unless the caller has named a dtype.
void set_dtype(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(kKey);
  const auto& arguments = op.schema().arguments();
  c10::IValue* const first = stack->data() + (stack->size() - arguments.size());
  bool is_half = false;
  for (size_t i = 0; i < arguments.size() && !is_half; ++i) {
    if (!first[i].isTensor() || !first[i].toTensor().defined()) continue;
    const at::ScalarType dtype = first[i].toTensor().scalar_type();
    is_half = dtype == at::kHalf || dtype == at::kBFloat16;
    break;
  }
  for (size_t i = 0; i < arguments.size() && is_half; ++i) {
    if (arguments[i].name() == "dtype" && first[i].isNone()) {
      first[i] = static_cast<int64_t>(at::kFloat);
    }
  }
  op.callBoxed(stack);
}

using Policy = void(const c10::OperatorHandle&, c10::DispatchKeySet, Stack*);

template <Policy* policy>
void add(torch::Library& aten, const char* name) {
  aten.impl(name, torch::CppFunction::makeFromBoxedFunction<policy>());
}

}  // namespace

// torch's lists of operators are macros that call one of these with a name, and an overload or not.
#define FL_NAME_1(name) #name
#define FL_NAME_2(name, overload) #name "." #overload
#define FL_CHOOSE(_1, _2, chosen, ...) chosen
#define FL_NAME(...) FL_CHOOSE(__VA_ARGS__, FL_NAME_2, FL_NAME_1)(__VA_ARGS__)
#define FL_LOWER(...) add<&lower>(aten, FL_NAME(__VA_ARGS__));
#define FL_FLOAT32(...) add<&to_float32>(aten, FL_NAME(__VA_ARGS__));
#define FL_SET_DTYPE(...) add<&set_dtype>(aten, FL_NAME(__VA_ARGS__));
#define FL_PROMOTE(...) add<&promote>(aten, FL_NAME(__VA_ARGS__));

void register_autocast(torch::Library& aten) {
  AT_FORALL_LOWER_PRECISION_FP(FL_LOWER)
  AT_FORALL_FP32(FL_FLOAT32)
  AT_FORALL_FP32_SET_OPT_DTYPE(FL_SET_DTYPE)
  AT_FORALL_PROMOTE(FL_PROMOTE)
}

}  // namespace lightning_mp::fl
