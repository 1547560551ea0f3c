#include "fl/dispatch/operator_info.h"

#include <ATen/core/function_schema.h>
#include <ATen/core/jit_type.h>

#include <mutex>
#include <unordered_set>

namespace lightning_mp::fl {
namespace {

// Operators that take tensors of the CPU beside those of an accelerator, as with CUDA: indices,
// lengths, and what works through lists of tensors of several devices.
const std::unordered_set<std::string>& mixing_operators() {
  static const auto* const names = new std::unordered_set<std::string>{
      "aten::_amp_foreach_non_finite_check_and_unscale_",
      "aten::_ctc_loss",
      "aten::_ctc_loss.Tensor",
      "aten::_ctc_loss_backward.Tensor",
      "aten::_index_put_impl_",
      "aten::_pack_padded_sequence",
      "aten::_unsafe_index.Tensor",
      "aten::_unsafe_index_put",
      "aten::_unsafe_masked_index",
      "aten::_unsafe_masked_index_put_accumulate",
      "aten::equal",
      "aten::index.Tensor",
      "aten::index.Tensor_out",
      "aten::index_put",
      "aten::index_put_",
      "aten::repeat_interleave.Tensor",
  };
  return *names;
}

std::mutex& list_mutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

std::vector<OperatorInfo*>& list() {
  static auto* const infos = new std::vector<OperatorInfo*>;
  return *infos;
}

std::string full_name(const c10::FunctionSchema& schema) {
  const std::string& overload = schema.overload_name();
  return overload.empty() ? schema.name() : schema.name() + "." + overload;
}

}  // namespace

ArgumentKind kind_of(const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return ArgumentKind::kTensor;
    case c10::TypeKind::GeneratorType:
      return ArgumentKind::kGenerator;
    case c10::TypeKind::DeviceObjType:
      return ArgumentKind::kDevice;
    case c10::TypeKind::OptionalType:
      return kind_of(type->castRaw<c10::OptionalType>()->getElementType());
    case c10::TypeKind::ListType: {
      const c10::TypePtr& element = type->castRaw<c10::ListType>()->getElementType();
      if (kind_of(element) != ArgumentKind::kTensor) return ArgumentKind::kOther;
      return element->kind() == c10::TypeKind::OptionalType ? ArgumentKind::kOptionalTensorList
                                                            : ArgumentKind::kTensorList;
    }
    default:
      return ArgumentKind::kOther;
  }
}

const char* route_name(Route route) {
  switch (route) {
    case Route::kNative:
      return "native";
    case Route::kGeneric:
      return "generic";
    case Route::kCpu:
      return "cpu_fallback";
    case Route::kRefused:
      return "refused";
    default:
      return "unresolved";
  }
}

OperatorInfo::OperatorInfo(const c10::OperatorHandle& op) : name(full_name(op.schema())) {
  for (const c10::Argument& argument : op.schema().arguments()) {
    const bool is_written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    has_written |= is_written;
    arguments.push_back({kind_of(argument.type()), is_written});
  }
  for (const c10::Argument& result : op.schema().returns()) {
    results.push_back(kind_of(result.type()));
  }
  // What a custom operator wants of its tensors is for itself to check.
  may_mix_devices = name.rfind("aten::", 0) != 0 || mixing_operators().count(name) > 0;
  // The batch sizes are for the loop over time steps, as with CUDA.
  if (name == "aten::_pack_padded_sequence") host_result = 1;
  const auto num_devices = static_cast<size_t>(g_num_slots);
  const size_t num_places = num_devices * kNumRoutes;
  calls_ = std::make_unique<std::atomic<int64_t>[]>(num_places);
  copied_bytes_ = std::make_unique<std::atomic<int64_t>[]>(num_devices);
  warned_ = std::make_unique<std::atomic<bool>[]>(num_places);
  routes_ = std::make_unique<std::atomic<Route>[]>(num_devices);
}

void OperatorInfo::count(int device_index, Route route, int64_t num_copied_bytes) {
  calls_[place(device_index, route)].fetch_add(1, std::memory_order_relaxed);
  if (num_copied_bytes == 0) return;
  copied_bytes_[static_cast<size_t>(device_index)].fetch_add(num_copied_bytes,
                                                             std::memory_order_relaxed);
}

int64_t OperatorInfo::num_calls(int device_index, Route route) const {
  return calls_[place(device_index, route)].load(std::memory_order_relaxed);
}

int64_t OperatorInfo::num_copied_bytes(int device_index) const {
  return copied_bytes_[static_cast<size_t>(device_index)].load(std::memory_order_relaxed);
}

void OperatorInfo::reset_counts() {
  for (int index = 0; index < g_num_slots; ++index) {
    for (int route = 0; route < kNumRoutes; ++route) {
      calls_[place(index, static_cast<Route>(route))].store(0, std::memory_order_relaxed);
    }
    copied_bytes_[static_cast<size_t>(index)].store(0, std::memory_order_relaxed);
  }
}

bool OperatorInfo::claim_warning(int device_index, Route route) {
  return !warned_[place(device_index, route)].exchange(true);
}

OperatorInfo* add_operator_info(const c10::OperatorHandle& op) {
  auto* const info = new OperatorInfo(op);
  const std::lock_guard<std::mutex> lock(list_mutex());
  list().push_back(info);
  return info;
}

std::vector<OperatorInfo*> all_operator_infos() {
  const std::lock_guard<std::mutex> lock(list_mutex());
  return list();
}

}  // namespace lightning_mp::fl
