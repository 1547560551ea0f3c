#include "fl/runtime/device.h"

#include <c10/core/ScalarType.h>
#include <c10/core/TensorOptions.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

#include "fl/memory/allocators.h"
#include "fl/memory/pool.h"
#include "fl/runtime/generator.h"

namespace lightning_mp::fl {

std::array<Device*, kMaxDevices> g_devices{};
int g_num_slots = 0;
thread_local int t_native_device = -1;

namespace {

// Below 0 until a thread asks: the first device that is there.
thread_local int t_current_device = -1;

int first_device() {
  int index = 0;
  while (index < g_num_slots - 1 && !has_device(index)) ++index;
  return index;
}

std::string known_ids() {
  std::string ids;
  for (int index = 0; index < g_num_slots; ++index) {
    if (has_device(index)) ids += (ids.empty() ? "fl:" : ", fl:") + std::to_string(index);
  }
  return ids.empty() ? "none" : ids;
}

void check_index(int index) {
  TORCH_CHECK_INDEX(has_device(index), "device index = ", index, "; there are ", known_ids(),
                    "; use one of them");
}

uint64_t bits_of(const std::vector<std::string>& dtypes) {
  if (dtypes.empty()) return ~uint64_t{0};
  uint64_t bits = 0;
  for (const std::string& name : dtypes) {
    bits |= uint64_t{1} << static_cast<int>(c10::getStringToDtypeMap().at(name));
  }
  return bits;
}

c10::DispatchKey dense_key(c10::Device device) {
  return c10::computeDispatchKey(/*dtype=*/std::nullopt, c10::kStrided, device);
}

}  // namespace

static_assert(static_cast<int>(at::ScalarType::NumOptions) <= 64, "dtypes are bits of a word");

Device::Device(DeviceSpec given)
    : spec(std::move(given)),
      native_key(dense_key(spec.native)),
      native_backend(c10::toBackendComponent(native_key)),
      dtypes(bits_of(spec.dtypes)),
      has_all_dtypes(spec.dtypes.empty()) {
  if (is_host()) {
    pool = std::make_unique<Pool>(spec.index, spec.limit_bytes, spec.alignment_bytes);
    native_allocator = &pool->allocator();
  } else {
    native_allocator = c10::GetAllocator(spec.native.type());
  }
  fl_allocator = make_fl_allocator(*this);
  generator = make_generator(*this);
}

Device::~Device() = default;

void add_device(DeviceSpec spec) {
  const int index = spec.index;
  // Never destroyed: tensors may live longer than static objects.
  g_devices[static_cast<size_t>(index)] = new Device(std::move(spec));
  g_num_slots = std::max(g_num_slots, index + 1);
}

int current_device() {
  if (C10_UNLIKELY(t_current_device < 0)) t_current_device = first_device();
  return t_current_device;
}

void set_current_device(int index) {
  check_index(index);
  t_current_device = index;
  const c10::Device native = device_at(index).spec.native;
  if (!native.is_cpu()) c10::impl::VirtualGuardImpl(native.type()).setDevice(native);
}

int resolve_index(c10::DeviceIndex index) {
  if (index < 0) return current_device();
  check_index(index);
  return index;
}

}  // namespace lightning_mp::fl
