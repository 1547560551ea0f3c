#include "fl/memory/allocators.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <pthread.h>

#include <utility>

#include "fl/memory/pool.h"
#include "fl/memory/twin.h"
#include "fl/runtime/device.h"

namespace lightning_mp::fl {
namespace {

using c10::CachingDeviceAllocator::DeviceStats;

class FlAllocator final : public c10::Allocator {
 public:
  explicit FlAllocator(const Device& device) : device_(device) {}

  c10::DataPtr allocate(size_t num_bytes) override {
    const c10::OptionalDeviceGuard guard(device_.is_host() ? std::optional<c10::Device>()
                                                           : device_.spec.native);
    auto twin = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t{}, num_bytes,
        device_.native_allocator->allocate(num_bytes), device_.native_allocator,
        /*resizable=*/true);
    return facade_pointer(std::move(twin), device_);
  }

  void copy_data(void* target, const void* source, size_t num_bytes) const override {
    device_.native_allocator->copy_data(target, source, num_bytes);
  }

 private:
  const Device& device_;
};

// The CPU's allocator while fl is in use.
class SwitchingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t num_bytes) override {
    const int index = t_native_device;
    if (C10_LIKELY(index < 0) || !device_at(index).is_host()) return base->allocate(num_bytes);
    return device_at(index).pool->allocator().allocate(num_bytes);
  }

  // Memory may be freed where nobody knows any more on whose behalf it was allocated.
  c10::DeleterFnPtr raw_deleter() const override { return &free_any; }

  void copy_data(void* target, const void* source, size_t num_bytes) const override {
    default_copy_data(target, source, num_bytes);
  }

  static c10::Allocator* base;  // what was the CPU's allocator before

 private:
  static void free_any(void* data) {
    if (owner_of(data) >= 0) {
      Pool::free(data);
    } else {
      base->raw_deallocate(data);
    }
  }
};

c10::Allocator* SwitchingAllocator::base = nullptr;

c10::DeviceAllocator* native_statistics_of(const Device& device) {
  return dynamic_cast<c10::DeviceAllocator*>(device.native_allocator);
}

// torch.accelerator's memory functions come here.
class FlDeviceAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t num_bytes) override {
    return device_at(current_device()).fl_allocator->allocate(num_bytes);
  }

  void copy_data(void* target, const void* source, size_t num_bytes) const override {
    device_at(current_device()).fl_allocator->copy_data(target, source, num_bytes);
  }

  bool initialized() override { return true; }

  void emptyCache(c10::MempoolId_t) override {
    for (Device* const device : g_devices) {
      if (device != nullptr) empty_cache(*device);
    }
  }

  void recordStream(const c10::DataPtr&, c10::Stream) override {}

  DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    const Device& device = device_at(resolve_index(index));
    if (auto* const native = native_statistics_of(device)) {
      return native->getDeviceStats(device.spec.native.index());
    }
    DeviceStats stats;
    if (device.pool == nullptr) return stats;
    const PoolStatistics pool = device.pool->statistics();
    stats.allocated_bytes[0].current = pool.allocated_bytes;
    stats.allocated_bytes[0].peak = pool.peak_allocated_bytes;
    stats.active_bytes[0] = stats.allocated_bytes[0];
    stats.reserved_bytes[0].current = pool.reserved_bytes;
    stats.reserved_bytes[0].peak = pool.peak_reserved_bytes;
    stats.requested_bytes[0].current = pool.requested_bytes;
    stats.num_alloc_retries = pool.num_retries;
    stats.num_ooms = pool.num_ooms;
    stats.num_device_alloc = pool.num_host_allocs;
    return stats;
  }

  // Counts of a pool are since the start: there is nothing to reset but the peaks.
  void resetAccumulatedStats(c10::DeviceIndex index) override {
    const Device& device = device_at(resolve_index(index));
    if (auto* const native = native_statistics_of(device)) {
      native->resetAccumulatedStats(device.spec.native.index());
    }
  }

  void resetPeakStats(c10::DeviceIndex index) override {
    reset_peak_memory(device_at(resolve_index(index)));
  }

  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    const Device& device = device_at(resolve_index(index));
    if (auto* const native = native_statistics_of(device)) {
      return native->getMemoryInfo(device.spec.native.index());
    }
    const int64_t limit = device.pool ? device.pool->limit_bytes() : -1;
    TORCH_CHECK(limit >= 0, "memory information of ", device.fl(),
                " = unknown; the device has no "
                "limit; give memory_bytes in its specification");
    const int64_t reserved = device.pool->statistics().reserved_bytes;
    return {static_cast<size_t>(limit - reserved), static_cast<size_t>(limit)};
  }
};

void for_each_pool(void (*action)(Pool&)) {
  for (Device* const device : g_devices) {
    if (device != nullptr && device->pool != nullptr) action(*device->pool);
  }
}

void lock_pools() {
  for_each_pool([](Pool& pool) { pool.mutex().lock(); });
}

void unlock_pools() {
  for_each_pool([](Pool& pool) { pool.mutex().unlock(); });
}

}  // namespace

std::unique_ptr<c10::Allocator> make_fl_allocator(const Device& device) {
  return std::make_unique<FlAllocator>(device);
}

void install_allocators() {
  // Above all others, as every plugin does; neither is destroyed, as memory outlives static
  // objects.
  constexpr uint8_t kPriority = 255;
  c10::SetAllocator(c10::kPrivateUse1, new FlDeviceAllocator, kPriority);
  SwitchingAllocator::base = c10::GetAllocator(c10::kCPU);
  c10::SetAllocator(c10::kCPU, new SwitchingAllocator, kPriority);
  // Workers of a DataLoader are forked while other threads may allocate.
  pthread_atfork(&lock_pools, &unlock_pools, &unlock_pools);
}

std::map<std::string, int64_t> memory_statistics(const Device& device) {
  PoolStatistics now;
  if (device.pool != nullptr) {
    now = device.pool->statistics();
  } else if (auto* const native = native_statistics_of(device)) {
    const DeviceStats stats = native->getDeviceStats(device.spec.native.index());
    now.allocated_bytes = stats.allocated_bytes[0].current;
    now.peak_allocated_bytes = stats.allocated_bytes[0].peak;
    now.requested_bytes = stats.requested_bytes[0].current;
    now.reserved_bytes = stats.reserved_bytes[0].current;
    now.peak_reserved_bytes = stats.reserved_bytes[0].peak;
    now.num_allocs = stats.allocation[0].allocated;
    now.num_frees = stats.allocation[0].freed;
    now.num_host_allocs = stats.num_device_alloc;
    now.num_retries = stats.num_alloc_retries;
    now.num_ooms = stats.num_ooms;
  }
  return {{"allocated_bytes", now.allocated_bytes},
          {"peak_allocated_bytes", now.peak_allocated_bytes},
          {"requested_bytes", now.requested_bytes},
          {"reserved_bytes", now.reserved_bytes},
          {"peak_reserved_bytes", now.peak_reserved_bytes},
          {"num_allocs", now.num_allocs},
          {"num_frees", now.num_frees},
          {"num_host_allocs", now.num_host_allocs},
          {"num_retries", now.num_retries},
          {"num_ooms", now.num_ooms},
          {"limit_bytes", device.spec.limit_bytes}};
}

void reset_peak_memory(const Device& device) {
  if (device.pool != nullptr) {
    device.pool->reset_peaks();
  } else if (auto* const native = native_statistics_of(device)) {
    native->resetPeakStats(device.spec.native.index());
  }
}

void empty_cache(const Device& device) {
  if (device.pool != nullptr) {
    device.pool->empty_cache();
  } else if (auto* const native = native_statistics_of(device)) {
    native->emptyCache();
  }
}

int owner_of(const void* pointer) {
  for (Device* const device : g_devices) {
    if (device != nullptr && device->pool != nullptr && device->pool->owns(pointer)) {
      return device->spec.index;
    }
  }
  return -1;
}

}  // namespace lightning_mp::fl
