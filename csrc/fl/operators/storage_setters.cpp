// set_() in its four forms: a tensor takes over a storage.
#include <ATen/EmptyTensor.h>
#include <c10/util/DimVector.h>
#include <c10/util/strides.h>

#include <utility>

#include "fl/dispatch/alias.h"
#include "fl/operators/registration.h"

namespace lightning_mp::fl {
namespace {

at::Tensor& set_storage_and_sizes(at::Tensor& self, at::Storage source, int64_t offset,
                                  at::IntArrayRef size, at::IntArrayRef stride) {
  c10::TensorImpl* const tensor = self.unsafeGetTensorImpl();
  TORCH_CHECK(source.device() == tensor->device(), "set_() of a tensor of ", tensor->device(),
              " to a storage of ", source.device(),
              "; a storage of the same device is allowed; "
              "move it first");
  TORCH_CHECK(offset >= 0, "storage offset = ", offset,
              "; 0 or more is allowed; pass one of these");
  const bool has_stride = stride.data() != nullptr && stride.size() == size.size();
  const c10::DimVector strides =
      has_stride ? c10::DimVector(stride) : c10::contiguous_strides(size);
  const size_t needed = at::detail::computeStorageNbytes(size, strides, tensor->itemsize(), offset);
  if (storage_of(tensor) != source.unsafeGetStorageImpl()) {
    tensor->set_storage_keep_dtype(std::move(source));
  }
  tensor->set_sizes_and_strides(size, strides, offset);
  if (needed > storage_of(tensor)->nbytes()) resize_storage(storage_of(tensor), needed);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source) {
  const auto num_elements = static_cast<int64_t>(source.nbytes() / self.element_size());
  return set_storage_and_sizes(self, std::move(source), 0, num_elements, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage_and_sizes(self, source.storage(), source.storage_offset(), source.sizes(),
                               source.strides());
}

at::Tensor& set_empty(at::Tensor& self) {
  c10::Allocator* const allocator = device_at(self.device().index()).fl_allocator.get();
  at::Storage source(c10::Storage::use_byte_size_t{}, 0, allocator, /*resizable=*/true);
  return set_storage_and_sizes(self, std::move(source), 0, 0, {});
}

}  // namespace

void register_storage_setters(torch::Library& aten) {
  aten.impl("set_.source_Storage_storage_offset", set_storage_and_sizes);
  aten.impl("set_.source_Storage", set_storage);
  aten.impl("set_.source_Tensor", set_tensor);
  aten.impl("set_", set_empty);
}

}  // namespace lightning_mp::fl
