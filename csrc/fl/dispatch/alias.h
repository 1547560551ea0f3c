// Native tensors on the memory of fl tensors, and fl tensors on that of native ones. No copies.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include "fl/compat.h"
#include "fl/memory/twin.h"
#include "fl/runtime/device.h"

namespace lightning_mp::fl {

using TensorPtr = c10::intrusive_ptr<c10::TensorImpl>;

inline bool is_fl(const c10::TensorImpl* tensor) { return tensor->is_privateuseone(); }

inline c10::StorageImpl* storage_of(const c10::TensorImpl* tensor) {
  return tensor->unsafe_storage().unsafeGetStorageImpl();
}

// A native tensor that native code works on in place of an fl tensor. A fresh one for each call, so
// that two threads may use one weight at the same time. It has no autograd keys: it then needs no
// version counter, which is an allocation less.
inline TensorPtr make_alias(const c10::TensorImpl* tensor, const Device& device) {
  const c10::DispatchKeySet keys =
      (tensor->key_set().remove_backend(c10::BackendComponent::PrivateUse1Bit) |
       c10::DispatchKeySet(device.native_backend)) -
      kAboveBackend;
  TensorPtr alias = make_bare_tensor(c10::Storage(native_storage(storage_of(tensor), device)), keys,
                                     tensor->dtype());
  alias->set_sizes_and_strides(tensor->sizes(), tensor->strides(), tensor->storage_offset());
  if (C10_UNLIKELY(tensor->is_wrapped_number())) alias->set_wrapped_number(true);
  return alias;
}

// The alias of an fl tensor; any other tensor as it is.
inline at::Tensor native_of(const at::Tensor& tensor) {
  const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  if (!is_fl(impl)) return tensor;
  return at::Tensor(make_alias(impl, device_at(impl->device().index())));
}

// Take over sizes, strides and memory that native code has given an alias.
void refresh_from_alias(c10::TensorImpl* tensor, const c10::TensorImpl* alias,
                        const Device& device);

// Turn a native tensor that nobody else has into one of fl. With a facade, its memory is that of
// the facade's twin, and the facade is shared: it is a view.
void adopt(c10::TensorImpl* tensor, const Device& device, const c10::Storage* facade);

// A native tensor to hand out to users, and an fl tensor on memory of a native one; both share
// memory with what they are made of, and are otherwise ordinary tensors without history.
at::Tensor to_native(const at::Tensor& tensor);
at::Tensor from_native(const at::Tensor& tensor, int64_t index);

}  // namespace lightning_mp::fl
