// The one place for what is private in torch. A minor version of torch may change any of it, so a
// new one is added here and to FL_TORCH_MINORS of setup.py after the tests have passed with it.
#pragma once

#include <c10/core/DispatchKeySet.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <torch/version.h>

#if TORCH_VERSION_MAJOR != 2 || TORCH_VERSION_MINOR != 13
#error "lightning_mp._fl is written for torch 2.13; see csrc/fl/compat.h"
#endif

namespace lightning_mp::fl {

// What autograd and autocast have done by the time a backend's kernel runs. Native code must not do
// it again, and aliases must not ask for it.
inline constexpr c10::DispatchKeySet kAboveBackend =
    c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset |
    c10::DispatchKeySet(c10::DispatchKey::ADInplaceOrView);

// What an ordinary tensor of a backend has beside the backend's own key.
inline constexpr c10::DispatchKeySet kAutogradOfFl{c10::DispatchKey::AutogradPrivateUse1,
                                                   c10::DispatchKey::ADInplaceOrView};

// A tensor has no public way to change its device, because nothing else of torch can survive that.
class PrivateMembers : c10::TensorImpl {
 public:
  static void set_device_and_keys(c10::TensorImpl* tensor, c10::Device device,
                                  c10::DispatchKeySet keys) {
    tensor->*(&PrivateMembers::device_opt_) = device;
    tensor->*(&PrivateMembers::key_set_) = keys;
  }
};

// Makes a tensor that is a view to itself: no version counter of its own, no autograd.
inline c10::intrusive_ptr<c10::TensorImpl> make_bare_tensor(c10::Storage storage,
                                                            c10::DispatchKeySet keys,
                                                            const caffe2::TypeMeta& dtype) {
  return c10::make_intrusive<c10::TensorImpl>(c10::TensorImpl::VIEW, std::move(storage), keys,
                                              dtype);
}

// The data pointer as it is, without the checks that would copy a storage that is copied on write.
inline c10::DataPtr& raw_data_ptr(c10::StorageImpl* storage) {
  return storage->_mutable_data_ptr_no_checks();
}

}  // namespace lightning_mp::fl
