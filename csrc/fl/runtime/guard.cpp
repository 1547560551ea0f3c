// Streams and events of a device that torch knows are those of that device: ids and events pass
// through. The CPU has none, so there a stream is an id, and an event is a time.
#include "fl/runtime/guard.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <array>
#include <atomic>
#include <chrono>

#include "fl/runtime/device.h"

namespace lightning_mp::fl {
namespace {

using c10::Stream;
using c10::impl::VirtualGuardImpl;
using Clock = std::chrono::steady_clock;

// What torch keeps as an opaque pointer: its own event is the native one, if there is such a thing.
struct Event {
  const Device* device;
  void* native = nullptr;
  Clock::time_point time;
};

Event* event_of(void* event) { return static_cast<Event*>(event); }

VirtualGuardImpl guard_of(const Device& device) {
  return VirtualGuardImpl(device.spec.native.type());
}

Stream with_device(const Stream& stream, c10::Device device) {
  return Stream(Stream::UNSAFE, device, stream.id());
}

std::atomic<c10::StreamId> g_next_stream{1};
thread_local std::array<c10::StreamId, kMaxDevices> t_streams{};

class FlGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kPrivateUse1; }

  c10::Device getDevice() const override {
    return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(current_device())};
  }

  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device previous = getDevice();
    setDevice(device);
    return previous;
  }

  void setDevice(c10::Device device) const override {
    if (device.has_index()) set_current_device(device.index());
  }

  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (has_device(device.index())) set_current_device(device.index());
  }

  // torch compares indices with this number, so it has to be above the highest of them.
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(g_num_slots);
  }

  Stream getStream(c10::Device asked) const override {
    const Device& device = device_at(resolve_index(asked.index()));
    if (!device.is_host()) {
      return with_device(guard_of(device).getStream(device.spec.native), device.fl());
    }
    return Stream(Stream::UNSAFE, device.fl(), t_streams[device.spec.index]);
  }

  Stream getDefaultStream(c10::Device asked) const override {
    const Device& device = device_at(resolve_index(asked.index()));
    if (!device.is_host()) {
      return with_device(guard_of(device).getDefaultStream(device.spec.native), device.fl());
    }
    return Stream(Stream::UNSAFE, device.fl(), 0);
  }

  Stream getStreamFromGlobalPool(c10::Device asked, bool is_high_priority) const override {
    return getNewStream(asked, is_high_priority ? -1 : 0);
  }

  Stream getNewStream(c10::Device asked, int priority) const override {
    const Device& device = device_at(resolve_index(asked.index()));
    if (!device.is_host()) {
      return with_device(guard_of(device).getNewStream(device.spec.native, priority), device.fl());
    }
    return Stream(Stream::UNSAFE, device.fl(), g_next_stream++);
  }

  Stream exchangeStream(Stream stream) const override {
    const Device& device = device_at(resolve_index(stream.device_index()));
    const Stream previous = getStream(device.fl());
    if (device.is_host()) {
      t_streams[device.spec.index] = stream.id();
    } else {
      guard_of(device).exchangeStream(with_device(stream, device.spec.native));
    }
    return previous;
  }

  bool queryStream(const Stream& stream) const override {
    const Device& device = device_at(stream.device_index());
    return device.is_host() || guard_of(device).queryStream(native_of(device, stream));
  }

  void synchronizeStream(const Stream& stream) const override {
    const Device& device = device_at(stream.device_index());
    if (!device.is_host()) guard_of(device).synchronizeStream(native_of(device, stream));
  }

  void synchronizeDevice(const c10::DeviceIndex index) const override {
    const Device& device = device_at(resolve_index(index));
    if (!device.is_host()) guard_of(device).synchronizeDevice(device.spec.native.index());
  }

  void record(void** slot, const Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag flag) const override {
    const Device& device = device_at(stream.device_index());
    if (*slot == nullptr) *slot = new Event{&device};
    Event* event = event_of(*slot);
    event->time = Clock::now();
    if (!device.is_host()) {
      guard_of(device).record(&event->native, native_of(device, stream), device.spec.native.index(),
                              flag);
    }
  }

  void block(void* event, const Stream& stream) const override {
    const Device& device = *event_of(event)->device;
    if (device.is_host()) return;
    const Device& waiting = device_at(stream.device_index());
    if (waiting.spec.native.type() == device.spec.native.type()) {
      guard_of(device).block(event_of(event)->native, native_of(waiting, stream));
    } else {
      synchronizeEvent(event);  // of different vendors, only the host can make one wait for another
    }
  }

  bool queryEvent(void* event) const override {
    const Device& device = *event_of(event)->device;
    return device.is_host() || guard_of(device).queryEvent(event_of(event)->native);
  }

  void synchronizeEvent(void* event) const override {
    const Device& device = *event_of(event)->device;
    if (!device.is_host()) guard_of(device).synchronizeEvent(event_of(event)->native);
  }

  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    if (event == nullptr) return;
    const Device& device = *event_of(event)->device;
    if (!device.is_host()) {
      guard_of(device).destroyEvent(event_of(event)->native, device.spec.native.index());
    }
    delete event_of(event);
  }

  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    const Device& device = *event_of(start)->device;
    if (!device.is_host()) {
      return guard_of(device).elapsedTime(event_of(start)->native, event_of(end)->native,
                                          device.spec.native.index());
    }
    const std::chrono::duration<double, std::milli> elapsed =
        event_of(end)->time - event_of(start)->time;
    return elapsed.count();
  }

 private:
  static Stream native_of(const Device& device, const Stream& stream) {
    return with_device(stream, device.spec.native);
  }
};

}  // namespace

void register_guard() {
  // Never destroyed, as torch asks for.
  c10::impl::registerDeviceGuard(c10::kPrivateUse1, new FlGuard);
}

}  // namespace lightning_mp::fl
