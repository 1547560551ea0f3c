#include "fl/dispatch/routes.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <array>
#include <string>
#include <utility>

#include "fl/dispatch/boxed_call.h"
#include "fl/dispatch/cpu_fallback.h"
#include "fl/dispatch/generic_kernels.h"

namespace lightning_mp::fl {
namespace {

RouteSettings& settings() {
  static auto* const all = new RouteSettings;
  return *all;
}

// The name of an operator with its overload, and without: a list names either.
std::array<std::string, 2> names_of(const OperatorInfo& info) {
  return {info.name, info.name.substr(0, info.name.find('.'))};
}

bool may_run_on_cpu(const OperatorInfo& info, const c10::OperatorHandle& op) {
  if (!op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU)) return false;
  const RouteSettings& now = settings();
  for (const std::string& name : names_of(info)) {
    if (now.denied.count(name) > 0) return false;
    if (now.allowed.count(name) > 0) return true;
  }
  return now.has_cpu_fallback;
}

bool is_unsupported(const OperatorInfo& info, const Device& device) {
  const auto& unsupported = device.spec.unsupported_operators;
  if (unsupported.empty()) return false;
  const auto names = names_of(info);
  return unsupported.count(names[0]) > 0 || unsupported.count(names[1]) > 0;
}

// The route where there is no native kernel, or where it does not take a dtype.
Route route_elsewhere(const OperatorInfo& info, const c10::OperatorHandle& op) {
  if (has_built_in_kernel(info.name)) return Route::kGeneric;
  if (settings().has_generic_kernels && has_generic_kernel(info.name)) return Route::kGeneric;
  return may_run_on_cpu(info, op) ? Route::kCpu : Route::kRefused;
}

Route resolve(OperatorInfo& info, const c10::OperatorHandle& op, const Device& device) {
  const bool is_native =
      !is_unsupported(info, device) && op.hasComputedKernelForDispatchKey(device.native_key);
  const Route route = is_native ? Route::kNative : route_elsewhere(info, op);
  info.route(device.spec.index).store(route, std::memory_order_relaxed);
  return route;
}

// Numbers that were Python's, and tensors of the CPU, have a dtype that the result does not get.
bool computes(const Device& device, const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined()) return true;
  const c10::TensorImpl* const tensor = value.toTensor().unsafeGetTensorImpl();
  return !is_fl(tensor) || tensor->is_wrapped_number() ||
         device.computes(value.toTensor().scalar_type());
}

// The first argument that is, or holds, a tensor of a dtype that the device does not compute.
const c10::IValue* find_unsupported(const OperatorInfo& info, const Device& device,
                                    const torch::jit::Stack& stack) {
  const size_t num_arguments = info.arguments.size();
  for (const c10::IValue& value : torch::jit::last(stack, num_arguments)) {
    if (!computes(device, value)) return &value;
    if (!value.isTensorList() && !value.isOptionalTensorList()) continue;
    for (const c10::IValue& element : value.toListRef()) {
      if (!computes(device, element)) return &element;
    }
  }
  return nullptr;
}

std::string dtype_of_call(const OperatorInfo& info, const Device& device,
                          const torch::jit::Stack& stack) {
  const c10::IValue* found = find_unsupported(info, device, stack);
  for (const c10::IValue& value : torch::jit::last(stack, info.arguments.size())) {
    if (found == nullptr && value.isTensor() && value.toTensor().defined()) found = &value;
  }
  if (found == nullptr) return "no tensor";
  return std::string(c10::getDtypeNames(found->toTensor().scalar_type()).first);
}

void call_generic(OperatorInfo& info, const Device& device, torch::jit::Stack* stack) {
  info.count(device.spec.index, Route::kGeneric);
  // Autograd has recorded the operator itself.
  const c10::impl::ExcludeDispatchKeyGuard below(kAboveBackend);
  generic_kernel(info.name).callBoxed(stack);
}

}  // namespace

void set_route_settings(RouteSettings given) {
  settings() = std::move(given);
  reset_routes();
}

const RouteSettings& route_settings() { return settings(); }

Route choose_route(OperatorInfo& info, const c10::OperatorHandle& op, const Device& device,
                   const torch::jit::Stack& stack) {
  Route route = info.route(device.spec.index).load(std::memory_order_relaxed);
  if (C10_UNLIKELY(route == Route::kUnresolved)) route = resolve(info, op, device);
  if (C10_LIKELY(route != Route::kNative || device.has_all_dtypes)) return route;
  return find_unsupported(info, device, stack) == nullptr ? route : route_elsewhere(info, op);
}

Route route_of(OperatorInfo& info, const c10::OperatorHandle& op, const Device& device,
               at::ScalarType dtype) {
  const Route route = resolve(info, op, device);
  return route != Route::kNative || device.computes(dtype) ? route : route_elsewhere(info, op);
}

void call_elsewhere(Route route, OperatorInfo& info, const c10::OperatorHandle& op,
                    const Device& device, torch::jit::Stack* stack) {
  const int index = device.spec.index;
  const std::string dtype = dtype_of_call(info, device, *stack);
  if (route == Route::kRefused) {
    info.count(index, route);
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, "operator ", info.name, " of ", dtype, " on ", device.fl(), " (", device.spec.name,
        ") = not available; it has no kernel for the device, no generic kernel, and may not run on "
        "the CPU; allow the CPU fallback, or register a generic kernel");
  }
  const bool is_expected = route == Route::kGeneric && has_built_in_kernel(info.name);
  if (settings().warns && !is_expected && info.claim_warning(index, route)) {
    TORCH_WARN("operator ", info.name, " of ", dtype, " on ", device.fl(),
               route == Route::kGeneric ? " runs as a generic kernel" : " runs on the CPU",
               ", because ", device.spec.name, " has no kernel for it; this is slower");
  }
  if (route == Route::kGeneric) return call_generic(info, device, stack);
  if (!device.has_separate_memory()) return NativeCall(info, device, stack, route).run(op);
  CpuCall(info, device, stack).run(op);
}

void reset_routes() {
  for (OperatorInfo* const info : all_operator_infos()) {
    for (int index = 0; index < g_num_slots; ++index) {
      info->route(index).store(Route::kUnresolved, std::memory_order_relaxed);
    }
  }
}

}  // namespace lightning_mp::fl
