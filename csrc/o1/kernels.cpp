// Boxed kernels, one per policy and device type, for free slots of the Autocast keys. While O1 is
// off, each of them acts as the empty slot would: the call goes to the next key, nothing excluded.
#include "kernels.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>
#include <torch/version.h>

#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "policies.h"

namespace lightning_mp::o1 {
namespace {

using c10::DeviceType;
using c10::DispatchKey;
using c10::DispatchKeySet;

// A dtype that autocast never lowers to. torch carries it for us: to the threads of backward, and
// into the recomputation of activation checkpointing.
constexpr at::ScalarType kMark = at::kDouble;

constexpr DispatchKey autocast_key(DeviceType device) {
  switch (device) {
    case DeviceType::CPU:
      return DispatchKey::AutocastCPU;
    case DeviceType::CUDA:
      return DispatchKey::AutocastCUDA;
    default:
      return DispatchKey::AutocastPrivateUse1;
  }
}

// Written while Python sets O1 up for a device type, before its first kernel is registered.
template <DeviceType device>
DeviceType carrier = device == DeviceType::CPU ? DeviceType::CUDA : DeviceType::CPU;

template <DeviceType device>
bool is_active() {
  return at::autocast::get_autocast_dtype(carrier<device>) == kMark;
}

[[noreturn]] void refuse(const c10::FunctionSchema& schema, bool is_in_place) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, schema.name(), " on half under O1; it runs in float32 only; ",
      is_in_place ? "call the form that returns a new tensor"
                  : "call the form that takes logits, or cast the inputs with .float() where "
                    "lightning_mp.amp.disable_casts() is in force");
}

bool has_explicit_dtype(const c10::FunctionSchema& schema, const c10::IValue* arguments) {
  const std::optional<int> index = schema.argumentIndexWithName("dtype");
  return index.has_value() && !arguments[*index].isNone();
}

// The dtype to cast the arguments to, or none where they stay as they are.
template <Policy policy, DeviceType device>
std::optional<at::ScalarType> wanted_type(const c10::FunctionSchema& schema,
                                          const c10::IValue* begin, const c10::IValue* end) {
  if constexpr (policy == Policy::kKeep) return std::nullopt;
  if constexpr (policy == Policy::kHalf) return at::autocast::get_autocast_dtype(device);
  if constexpr (policy == Policy::kMatchFirst) {
    const at::ScalarType type = begin->toTensor().scalar_type();
    return is_half(type) || type == at::kFloat ? std::optional(type) : std::nullopt;
  }
  if constexpr (policy == Policy::kFloat32 || policy == Policy::kBannedInPlace) {
    if (has_explicit_dtype(schema, begin)) return std::nullopt;  // it is the user's word
  }
  if constexpr (policy == Policy::kFloat32) return at::kFloat;
  if constexpr (policy == Policy::kBannedInPlace) {
    if (is_half(begin->toTensor().scalar_type())) refuse(schema, /*is_in_place=*/true);
    return std::nullopt;
  }
  SeenTypes seen;
  for (const c10::IValue* argument = begin; argument != end; ++argument) seen.look(*argument);
  if constexpr (policy == Policy::kBanned) {
    if (seen.has_half) refuse(schema, /*is_in_place=*/false);
  }
  return seen.is_mixed() ? std::optional(at::kFloat) : std::nullopt;
}

template <Policy policy, DeviceType device>
void kernel(const c10::OperatorHandle& op, DispatchKeySet keys, torch::jit::Stack* stack) {
  constexpr DispatchKey key = autocast_key(device);
  const DispatchKeySet next = keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, key);
  if (C10_UNLIKELY(!is_active<device>())) return op.redispatchBoxed(next, stack);

  const c10::FunctionSchema& schema = op.schema();
  c10::IValue* const end = stack->data() + stack->size();
  c10::IValue* const begin = end - schema.arguments().size();
  const std::optional<at::ScalarType> wanted = wanted_type<policy, device>(schema, begin, end);
  // What the operator calls inside is part of it, so its own policy is the only one.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(key);
  if (!wanted.has_value()) return op.redispatchBoxed(next, stack);
  const Cast<device> cast{*wanted, /*is_cached=*/policy == Policy::kHalf};
  for (c10::IValue* argument = begin; argument != end; ++argument) cast(*argument);
  op.callBoxed(stack);
}

template <DeviceType device>
torch::CppFunction kernel_of(const std::string& policy) {
  using torch::CppFunction;
  if (policy == "half") {
    return CppFunction::makeFromBoxedFunction<&kernel<Policy::kHalf, device>>();
  }
  if (policy == "fp32") {
    return CppFunction::makeFromBoxedFunction<&kernel<Policy::kFloat32, device>>();
  }
  if (policy == "promote") {
    return CppFunction::makeFromBoxedFunction<&kernel<Policy::kPromote, device>>();
  }
  if (policy == "match_first") {
    return CppFunction::makeFromBoxedFunction<&kernel<Policy::kMatchFirst, device>>();
  }
  if (policy == "banned") {
    return CppFunction::makeFromBoxedFunction<&kernel<Policy::kBanned, device>>();
  }
  if (policy == "banned_in_place") {
    return CppFunction::makeFromBoxedFunction<&kernel<Policy::kBannedInPlace, device>>();
  }
  TORCH_CHECK_VALUE(policy == "keep", "policy = ", policy,
                    "; allowed: half, fp32, promote, match_first, banned, banned_in_place, keep; "
                    "pass one of them");
  return CppFunction::makeFromBoxedFunction<&kernel<Policy::kKeep, device>>();
}

DeviceType device_type(const std::string& name) {
  if (name == "cpu") return DeviceType::CPU;
  if (name == "cuda") return DeviceType::CUDA;
  TORCH_CHECK_VALUE(name == "privateuse1", "device = ", name,
                    "; allowed: cpu, cuda, privateuse1; pass one of them");
  return DeviceType::PrivateUse1;
}

torch::CppFunction kernel_of(const std::string& policy, DeviceType device) {
  switch (device) {
    case DeviceType::CPU:
      return kernel_of<DeviceType::CPU>(policy);
    case DeviceType::CUDA:
      return kernel_of<DeviceType::CUDA>(policy);
    default:
      return kernel_of<DeviceType::PrivateUse1>(policy);
  }
}

struct Registration {
  std::string policy;
  torch::Library library;
};

using Slot = std::tuple<std::string, std::string, std::string>;

// Never destroyed: at exit the dispatcher may be gone before us.
std::map<Slot, Registration>& registrations() {
  static auto* const all = new std::map<Slot, Registration>();
  return *all;
}

}  // namespace

std::string slot(const std::string& op, const std::string& overload, const std::string& device) {
  const DispatchKey key = autocast_key(device_type(device));
  if (registrations().count({device, op, overload}) > 0) return "ours";
  const auto handle = c10::Dispatcher::singleton().findSchema({op, overload});
  if (!handle.has_value()) return "absent";
  return handle->hasKernelForDispatchKey(key) ? "taken" : "free";
}

std::string add(const std::string& op, const std::string& overload, const std::string& policy,
                const std::string& device) {
  const DeviceType type = device_type(device);
  torch::CppFunction function = kernel_of(policy, type);
  const std::string owner = slot(op, overload, device);
  if (owner == "taken" || owner == "absent") return owner;
  const Slot key{device, op, overload};
  const auto present = registrations().find(key);
  if (present != registrations().end()) {
    if (present->second.policy == policy) return owner;
    registrations().erase(present);
  }
  torch::Library library(torch::Library::IMPL, op.substr(0, op.find("::")), autocast_key(type),
                         __FILE__, __LINE__);
  library.impl((overload.empty() ? op : op + "." + overload).c_str(), std::move(function));
  registrations().emplace(key, Registration{policy, std::move(library)});
  return "ours";
}

void remove(const std::string& device) {
  device_type(device);
  for (auto entry = registrations().begin(); entry != registrations().end();) {
    entry = std::get<0>(entry->first) == device ? registrations().erase(entry) : std::next(entry);
  }
}

std::vector<std::tuple<std::string, std::string, std::string, std::string>> table() {
  std::vector<std::tuple<std::string, std::string, std::string, std::string>> rows;
  for (const auto& [key, registration] : registrations()) {
    const auto& [device, op, overload] = key;
    rows.emplace_back(device, op, overload, registration.policy);
  }
  return rows;
}

void use_carrier(const std::string& device, const std::string& carrier_device) {
  const DeviceType type = device_type(device);
  const DeviceType carrier_type = c10::Device(carrier_device).type();
  TORCH_CHECK_VALUE(type != carrier_type, "carrier = ", carrier_device,
                    "; allowed: a device type other than ", device,
                    "; pass one whose autocast is off");
  if (type == DeviceType::CPU) {
    carrier<DeviceType::CPU> = carrier_type;
  } else if (type == DeviceType::CUDA) {
    carrier<DeviceType::CUDA> = carrier_type;
  } else {
    carrier<DeviceType::PrivateUse1> = carrier_type;
  }
}

std::string torch_version() { return TORCH_VERSION; }

}  // namespace lightning_mp::o1
