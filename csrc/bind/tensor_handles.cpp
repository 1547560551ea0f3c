#include "bind/tensor_handles.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/stableivalue_conversions.h>
#include <torch/headeronly/util/shim_utils.h>

namespace lightning_mp::bind {

TensorHandles::TensorHandles(StableListHandle list) {
  size_t size;
  TORCH_ERROR_CODE_CHECK(torch_list_size(list, &size));
  handles_.reserve(size);
  for (size_t i = 0; i < size; ++i) {
    StableIValue item;
    TORCH_ERROR_CODE_CHECK(torch_list_get_item(list, i, &item));
    handles_.push_back(torch::stable::detail::to<AtenTensorHandle>(item));
  }
  TORCH_ERROR_CODE_CHECK(torch_delete_list(list));
}

TensorHandles::~TensorHandles() {
  // Nothing can be done about an error here, and there is none.
  for (size_t i = 0; i < handles_.size(); ++i) {
    prefetch(i);
    (void)aoti_torch_delete_tensor_object(handles_[i]);
  }
}

Tensor tensor_of(AtenTensorHandle handle) {
  AtenTensorHandle copy;
  TORCH_ERROR_CODE_CHECK(aoti_torch_new_tensor_handle(handle, &copy));
  return Tensor(copy);
}

}  // namespace lightning_mp::bind
