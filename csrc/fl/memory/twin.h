// Memory of an fl tensor belongs to a storage of the native device, its twin. The storage that the
// fl tensor has is a facade: its data pointer has the twin's address, and the twin as context.
//
// Two storages, because a view takes its device from its storage: views that native code makes have
// to be native, those that users make have to be fl.
#pragma once

#include <c10/core/Storage.h>

#include "fl/compat.h"
#include "fl/runtime/device.h"

namespace lightning_mp::fl {

using StoragePtr = c10::intrusive_ptr<c10::StorageImpl>;

void drop_twin(void* context);

// Another reference to an object that something else keeps alive.
inline StoragePtr share(c10::StorageImpl* storage) {
  return StoragePtr::unsafe_reclaim_from_nonowning(storage);
}

inline c10::DataPtr facade_pointer(StoragePtr twin, const Device& device) {
  void* const data = const_cast<void*>(twin->data());
  return {data, twin.release(), &drop_twin, device.fl()};
}

// The twin of a storage, or null if it is no facade.
inline c10::StorageImpl* find_twin(c10::StorageImpl* storage) {
  c10::DataPtr& pointer = raw_data_ptr(storage);
  if (pointer.get_deleter() != &drop_twin) return nullptr;
  return static_cast<c10::StorageImpl*>(pointer.get_context());
}

// A native storage over memory that came from elsewhere, such as a DLPack capsule.
StoragePtr view_as_native(c10::StorageImpl* storage, const Device& device);

inline StoragePtr native_storage(c10::StorageImpl* storage, const Device& device) {
  c10::StorageImpl* const twin = find_twin(storage);
  return C10_LIKELY(twin != nullptr) ? share(twin) : view_as_native(storage, device);
}

inline c10::Storage make_facade(StoragePtr twin, const Device& device) {
  const size_t num_bytes = twin->nbytes();
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t{}, num_bytes, facade_pointer(std::move(twin), device),
      device.fl_allocator.get(), /*resizable=*/true));
}

// To be called after native code that may have resized a twin, or moved it to other memory.
inline void refresh_facade(c10::StorageImpl* facade, const Device& device) {
  c10::StorageImpl* const twin = find_twin(facade);
  if (twin == nullptr) return;
  if (C10_LIKELY(twin->data() == facade->data() && twin->nbytes() == facade->nbytes())) return;
  const size_t num_bytes = twin->nbytes();
  facade->set_data_ptr_noswap(facade_pointer(share(twin), device));
  facade->set_nbytes(num_bytes);
}

// Give a storage of fl another size; its bytes are kept as far as they fit.
void resize_storage(c10::StorageImpl* facade, size_t num_bytes);

}  // namespace lightning_mp::fl
