// Copies between devices, and to the host: one of the two tensors may be of another device.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_local_scalar_dense_ops.h>
#include <ATen/ops/copy_ops.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "fl/dispatch/alias.h"
#include "fl/operators/registration.h"

namespace lightning_mp::fl {
namespace {

// The fl device that a copy is counted for.
int device_index_of(const at::Tensor& target, const at::Tensor& source) {
  const at::Tensor& tensor = is_fl(target.unsafeGetTensorImpl()) ? target : source;
  return tensor.device().index();
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  if (self.is_same(source)) return self;
  at::Tensor target = native_of(self);
  const NativeScope scope(device_index_of(self, source));
  const c10::impl::ExcludeDispatchKeyGuard below(kAboveBackend);
  at::_ops::copy_::call(target, native_of(source), non_blocking);
  return self;
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  at::Tensor written = target;
  return copy_(written, source, non_blocking);
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  target.resize_(source.sizes());
  return copy_from(source, target, /*non_blocking=*/false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  const NativeScope scope(self.device().index());
  const c10::impl::ExcludeDispatchKeyGuard below(kAboveBackend);
  return at::_ops::_local_scalar_dense::call(native_of(self));
}

// Keeps memory that a stream still uses from being given to somebody else.
void record_stream(at::Tensor& self, at::Stream stream) {
  const Device& device = device_at(self.device().index());
  if (device.is_host()) return;
  c10::StorageImpl* const twin = find_twin(storage_of(self.unsafeGetTensorImpl()));
  if (twin == nullptr) return;
  const c10::Stream native(c10::Stream::UNSAFE, device.spec.native, stream.id());
  c10::impl::getDeviceGuardImpl(device.spec.native.type())
      ->recordDataPtrOnStream(twin->data_ptr(), native);
}

// With this, Module.to("fl") keeps Parameter objects: optimizers that were made before go on
// working, and tied weights stay tied.
bool has_compatible_shallow_copy_type(const at::Tensor&, const at::Tensor&) { return true; }

}  // namespace

void register_copies(torch::Library& aten) {
  aten.impl("copy_", copy_);
  aten.impl("_copy_from", copy_from);
  aten.impl("_copy_from_and_resize", copy_from_and_resize);
  aten.impl("_local_scalar_dense", local_scalar_dense);
  aten.impl("record_stream", record_stream);
  aten.impl("_has_compatible_shallow_copy_type", has_compatible_shallow_copy_type);
}

}  // namespace lightning_mp::fl
