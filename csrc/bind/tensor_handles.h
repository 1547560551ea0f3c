// A list of tensors as torch hands it over.
#pragma once

#include <stdint.h>
#include <torch/csrc/stable/tensor.h>

#include <vector>

namespace lightning_mp::bind {

using torch::stable::Tensor;

// Owns what is in a list argument. A torch::stable::Tensor each would do as well, but takes another
// allocation: with thousands of small tensors that is most of a call.
class TensorHandles {
 public:
  // Takes the list over.
  explicit TensorHandles(StableListHandle list);
  ~TensorHandles();
  TensorHandles(const TensorHandles&) = delete;
  TensorHandles& operator=(const TensorHandles&) = delete;

  size_t size() const { return handles_.size(); }

  AtenTensorHandle operator[](size_t index) const { return handles_[index]; }

 private:
  std::vector<AtenTensorHandle> handles_;
};

// Another reference to a tensor.
Tensor tensor_of(AtenTensorHandle handle);

}  // namespace lightning_mp::bind
