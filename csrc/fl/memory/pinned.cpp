#include "fl/memory/pinned.h"

#include <ATen/Context.h>

#include <cstdlib>
#include <map>
#include <mutex>

#include "fl/runtime/device.h"

namespace lightning_mp::fl {
namespace {

// Hooks of a device that pins memory, or null.
const at::AcceleratorHooksInterface* native_hooks() {
  for (Device* const device : g_devices) {
    if (device == nullptr || device->is_host()) continue;
    return &at::globalContext().getAcceleratorHooksInterface(device->spec.native.type());
  }
  return nullptr;
}

class RememberingAllocator final : public c10::Allocator {
 public:
  static RememberingAllocator& get() {
    static auto* const allocator = new RememberingAllocator;
    return *allocator;
  }

  c10::DataPtr allocate(size_t num_bytes) override {
    void* data = nullptr;
    if (num_bytes > 0) {
      TORCH_CHECK_WITH(OutOfMemoryError, posix_memalign(&data, kAlignment, num_bytes) == 0,
                       "allocation of pinned memory = ", num_bytes,
                       " bytes; the host has no memory left; use less memory");
      const std::lock_guard<std::mutex> lock(mutex_);
      live_[static_cast<const char*>(data)] = num_bytes;
    }
    return {data, data, &free_remembered, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_remembered; }

  void copy_data(void* target, const void* source, size_t num_bytes) const override {
    default_copy_data(target, source, num_bytes);
  }

  bool contains(const void* pointer) {
    const char* const byte = static_cast<const char*>(pointer);
    const std::lock_guard<std::mutex> lock(mutex_);
    auto next = live_.upper_bound(byte);
    if (next == live_.begin()) return false;
    --next;
    return byte < next->first + next->second;
  }

 private:
  static constexpr size_t kAlignment = 64;

  static void free_remembered(void* data) {
    RememberingAllocator& allocator = get();
    {
      const std::lock_guard<std::mutex> lock(allocator.mutex_);
      allocator.live_.erase(static_cast<const char*>(data));
    }
    std::free(data);
  }

  std::mutex mutex_;
  std::map<const char*, size_t> live_;
};

}  // namespace

c10::Allocator& pinned_allocator() {
  const auto* const native = native_hooks();
  if (native != nullptr) return *native->getPinnedMemoryAllocator();
  return RememberingAllocator::get();
}

bool is_pinned(const void* pointer) {
  if (RememberingAllocator::get().contains(pointer)) return true;
  const auto* const native = native_hooks();
  return native != nullptr && native->isPinnedPtr(pointer);
}

}  // namespace lightning_mp::fl
