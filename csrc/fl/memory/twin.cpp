#include "fl/memory/twin.h"

#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <utility>

namespace lightning_mp::fl {

void drop_twin(void* context) { StoragePtr::reclaim(static_cast<c10::StorageImpl*>(context)); }

StoragePtr view_as_native(c10::StorageImpl* storage, const Device& device) {
  c10::DataPtr pointer(const_cast<void*>(storage->data()), device.spec.native);
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t{},
                                               storage->nbytes(), std::move(pointer),
                                               /*allocator=*/nullptr, /*resizable=*/false);
}

void resize_storage(c10::StorageImpl* facade, size_t num_bytes) {
  const Device& device = device_at(facade->device().index());
  c10::StorageImpl* const twin = find_twin(facade);
  TORCH_CHECK(twin != nullptr && facade->resizable(), "resize of a storage of ", device.fl(),
              " to ", num_bytes,
              " bytes; storages whose memory fl allocated are allowed; clone the "
              "tensor first");
  const c10::OptionalDeviceGuard guard(device.is_host() ? std::optional<c10::Device>()
                                                        : device.spec.native);
  c10::DataPtr pointer = device.native_allocator->allocate(num_bytes);
  const size_t num_kept = std::min(num_bytes, twin->nbytes());
  if (num_kept > 0) device.native_allocator->copy_data(pointer.get(), twin->data(), num_kept);
  twin->set_data_ptr_noswap(std::move(pointer));
  twin->set_nbytes(num_bytes);
  refresh_facade(facade, device);
}

}  // namespace lightning_mp::fl
