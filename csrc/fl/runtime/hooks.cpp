#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "fl/memory/allocators.h"
#include "fl/memory/pinned.h"
#include "fl/memory/twin.h"
#include "fl/runtime/device.h"
#include "fl/runtime/generator.h"
#include "fl/runtime/guard.h"

namespace lightning_mp::fl {
namespace {

class FlHooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }

  bool isAvailable() const override { return g_num_slots > 0; }

  bool hasPrimaryContext(c10::DeviceIndex index) const override { return has_device(index); }

  void init() const override {}

  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(g_num_slots);
  }

  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(current_device());
  }

  void setCurrentDevice(c10::DeviceIndex index) const override { set_current_device(index); }

  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const c10::DeviceIndex previous = getCurrentDevice();
    if (index >= 0) set_current_device(index);
    return previous;
  }

  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return exchangeDevice(index);
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return device_at(resolve_index(index)).generator;
  }

  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return make_generator(device_at(resolve_index(index)));
  }

  at::Device getDeviceFromPtr(void* data) const override {
    const int owner = owner_of(data);
    return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(owner < 0 ? current_device() : owner)};
  }

  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }

  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t num_bytes) const override {
    resize_storage(storage.unsafeGetStorageImpl(), num_bytes);
  }
};

}  // namespace

void check_slot_is_free() {
  TORCH_CHECK(
      !c10::impl::hasDeviceGuardImpl(c10::kPrivateUse1) && !at::isPrivateUse1HooksRegistered(),
      "device type fl = not available; torch has one place for a device of a plugin "
      "(PrivateUse1), and another plugin has taken it; start a process that does not import "
      "that plugin");
}

void register_hooks() {
  // Never destroyed, as torch asks for.
  at::RegisterPrivateUse1HooksInterface(new FlHooks);
}

}  // namespace lightning_mp::fl
