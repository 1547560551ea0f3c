// What is known of an operator before it is called, and what has been counted of its calls.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fl/runtime/device.h"

namespace lightning_mp::fl {

enum class ArgumentKind : uint8_t {
  kOther,
  kTensor,  // or optional
  kTensorList,
  kOptionalTensorList,
  kGenerator,
  kDevice,
};

struct Argument {
  ArgumentKind kind;
  bool is_written;
};

ArgumentKind kind_of(const c10::TypePtr& type);

// Ways for an operator to be computed, in the order in which they are tried.
enum class Route : uint8_t { kUnresolved, kNative, kGeneric, kCpu, kRefused };
constexpr int kNumRoutes = 5;
const char* route_name(Route route);

class OperatorInfo {
 public:
  explicit OperatorInfo(const c10::OperatorHandle& op);

  // Looked up once per operator and device, then kept.
  std::atomic<Route>& route(int device_index) { return routes_[static_cast<size_t>(device_index)]; }

  void count(int device_index, Route route, int64_t num_copied_bytes = 0);
  int64_t num_calls(int device_index, Route route) const;
  int64_t num_copied_bytes(int device_index) const;
  void reset_counts();

  // True the first time that it is asked.
  bool claim_warning(int device_index, Route route);

  std::string name;  // "aten::add.Tensor"
  std::vector<Argument> arguments;
  std::vector<ArgumentKind> results;
  bool has_written = false;      // some argument is written
  int host_result = -1;          // index of a result that is on the CPU by design
  bool may_mix_devices = false;  // tensors of the CPU are allowed beside those of fl

 private:
  static size_t place(int device_index, Route route) {
    return static_cast<size_t>(device_index * kNumRoutes + static_cast<int>(route));
  }

  std::unique_ptr<std::atomic<int64_t>[]> calls_;
  std::unique_ptr<std::atomic<int64_t>[]> copied_bytes_;
  std::unique_ptr<std::atomic<Route>[]> routes_;
  std::unique_ptr<std::atomic<bool>[]> warned_;
};

// All that exist, for statistics. Never destroyed.
OperatorInfo* add_operator_info(const c10::OperatorHandle& op);
std::vector<OperatorInfo*> all_operator_infos();

}  // namespace lightning_mp::fl
