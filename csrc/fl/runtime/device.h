// Logical devices: what is under each, and the table of them.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKeySet.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

namespace lightning_mp::fl {

class Pool;

// Ids are indices of tables, so there is a limit; ids may have holes.
constexpr int kMaxDevices = 16;

// lightning_mp.fl.DeviceSpec, as it comes from Python, which has checked it.
struct DeviceSpec {
  int index = 0;
  std::string vendor;
  c10::Device native{c10::kCPU};
  std::string name;
  std::string uid;
  bool is_simulated = false;
  int64_t limit_bytes = -1;  // below 0: none
  int64_t alignment_bytes = 64;
  std::vector<std::string> dtypes;  // empty: all
  std::unordered_set<std::string> unsupported_operators;
  double slowdown = 1.0;
};

struct Device {
  explicit Device(DeviceSpec spec);
  ~Device();

  c10::Device fl() const { return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(spec.index)}; }

  // Whether memory of the device is memory of the host, and its kernels those of the CPU.
  bool is_host() const { return spec.native.is_cpu(); }

  // Whether the CPU reaches this device's memory by copies only. A simulated device says that it
  // is so, although its memory is that of the host.
  bool has_separate_memory() const { return !is_host() || spec.is_simulated; }

  bool is_slowed() const { return spec.slowdown > 1.0; }

  bool computes(at::ScalarType dtype) const { return (dtypes >> static_cast<int>(dtype)) & 1; }

  const DeviceSpec spec;
  const c10::DispatchKey native_key;
  const c10::BackendComponent native_backend;
  const uint64_t dtypes;  // bit per c10::ScalarType
  const bool has_all_dtypes;
  std::unique_ptr<Pool> pool;                    // of devices of the host
  c10::Allocator* native_allocator;              // allocates memory of the twin
  std::unique_ptr<c10::Allocator> fl_allocator;  // wraps it
  at::Generator generator;                       // its inner generator is one of the native device
};

// Written by activate(), once; only read afterwards. A null is a hole.
extern std::array<Device*, kMaxDevices> g_devices;
extern int g_num_slots;  // highest id + 1

inline Device& device_at(int index) { return *g_devices[static_cast<size_t>(index)]; }

inline bool has_device(int index) {
  return index >= 0 && index < g_num_slots && g_devices[static_cast<size_t>(index)] != nullptr;
}

// Device of this thread, as in torch.fl.current_device().
int current_device();
void set_current_device(int index);  // refuses an id that is not there

// The id that a device means: its own, or the current one if it has none. Refuses ids not there.
int resolve_index(c10::DeviceIndex index);

// The fl device whose native code runs on this thread, or -1. Allocations follow it. Each call of
// an operator, and each allocation on the CPU, reads it, so it is placed where that takes no call.
extern thread_local int t_native_device __attribute__((tls_model("initial-exec")));

class NativeScope {
 public:
  explicit NativeScope(int index) : previous_(t_native_device) { t_native_device = index; }

  ~NativeScope() { t_native_device = previous_; }

  NativeScope(const NativeScope&) = delete;
  NativeScope& operator=(const NativeScope&) = delete;

 private:
  const int previous_;
};

void add_device(DeviceSpec spec);

}  // namespace lightning_mp::fl
