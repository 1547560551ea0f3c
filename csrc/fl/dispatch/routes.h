// Which way an operator is computed: by a kernel of the device, by a generic kernel made of other
// operators, by the CPU, or not at all.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <unordered_set>

#include "fl/dispatch/operator_info.h"
#include "fl/runtime/device.h"

namespace lightning_mp::fl {

struct RouteSettings {
  bool has_cpu_fallback = true;
  bool has_generic_kernels = true;
  bool warns = true;  // once per operator, device and route, if it is not the native one
  std::unordered_set<std::string> denied;   // never computed by the CPU
  std::unordered_set<std::string> allowed;  // only these are computed by the CPU; empty: all
};

// To be called while no other thread uses fl.
void set_route_settings(RouteSettings settings);
const RouteSettings& route_settings();

// The route of one call. It depends on the arguments only for devices that lack some dtypes.
Route choose_route(OperatorInfo& info, const c10::OperatorHandle& op, const Device& device,
                   const torch::jit::Stack& stack);

// The route of calls whose tensors have only this dtype, without calling anything.
Route route_of(OperatorInfo& info, const c10::OperatorHandle& op, const Device& device,
               at::ScalarType dtype);

// Any route but the native one.
void call_elsewhere(Route route, OperatorInfo& info, const c10::OperatorHandle& op,
                    const Device& device, torch::jit::Stack* stack);

// Forget which routes were chosen.
void reset_routes();

}  // namespace lightning_mp::fl
