#include "fl/dispatch/alias.h"

#include <c10/core/InferenceMode.h>

#include <utility>

namespace lightning_mp::fl {

void refresh_from_alias(c10::TensorImpl* tensor, const c10::TensorImpl* alias,
                        const Device& device) {
  if (tensor->storage_offset() != alias->storage_offset() || tensor->sizes() != alias->sizes() ||
      tensor->strides() != alias->strides()) {
    tensor->set_sizes_and_strides(alias->sizes(), alias->strides(), alias->storage_offset());
  }
  refresh_facade(storage_of(tensor), device);
}

void adopt(c10::TensorImpl* tensor, const Device& device, const c10::Storage* facade) {
  const bool is_inference = c10::InferenceMode::is_enabled();
  const bool has_no_counter = tensor->is_inference();
  c10::DispatchKeySet keys =
      (tensor->key_set().remove_backend(device.native_backend) - kAboveBackend) |
      c10::DispatchKeySet(c10::BackendComponent::PrivateUse1Bit) |
      c10::DispatchKeySet(c10::DispatchKey::AutocastPrivateUse1);
  if (!is_inference) keys = keys | kAutogradOfFl;
  PrivateMembers::set_device_and_keys(tensor, device.fl(), keys);
  // After the keys: a tensor without those of autograd may have no version counter.
  if (has_no_counter && !is_inference) tensor->set_version_counter(c10::VariableVersion(0));
  auto& storage = const_cast<c10::Storage&>(tensor->unsafe_storage());
  if (facade != nullptr) {
    storage = *facade;
    return;
  }
  storage = make_facade(StoragePtr::reclaim(storage.unsafeReleaseStorageImpl()), device);
}

at::Tensor to_native(const at::Tensor& tensor) {
  const c10::TensorImpl* const source = tensor.unsafeGetTensorImpl();
  TORCH_CHECK_VALUE(is_fl(source), "tensor on ", tensor.device(),
                    "; a tensor of fl is allowed; it is native already");
  const Device& device = device_at(source->device().index());
  TensorPtr result =
      c10::make_intrusive<c10::TensorImpl>(c10::Storage(native_storage(storage_of(source), device)),
                                           c10::DispatchKeySet(device.native_key), source->dtype());
  result->set_sizes_and_strides(source->sizes(), source->strides(), source->storage_offset());
  if (source->is_conj()) result->_set_conj(true);
  if (source->is_neg()) result->_set_neg(true);
  return at::Tensor(std::move(result));
}

at::Tensor from_native(const at::Tensor& tensor, int64_t index) {
  const Device& device = device_at(resolve_index(static_cast<c10::DeviceIndex>(index)));
  TORCH_CHECK_VALUE(tensor.device() == device.spec.native, "tensor on ", tensor.device(), " for ",
                    device.fl(), "; one on ", device.spec.native,
                    " is allowed; move it there first");
  const c10::TensorImpl* const source = tensor.unsafeGetTensorImpl();
  TensorPtr result = c10::make_intrusive<c10::TensorImpl>(
      make_facade(share(storage_of(source)), device),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), source->dtype());
  result->set_sizes_and_strides(source->sizes(), source->strides(), source->storage_offset());
  if (source->is_conj()) result->_set_conj(true);
  if (source->is_neg()) result->_set_neg(true);
  return at::Tensor(std::move(result));
}

}  // namespace lightning_mp::fl
