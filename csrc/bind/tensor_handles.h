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

  // Fetches what a handle points to some places ahead of `index`. The streams of a step have pushed
  // all of it out of the caches, and one wait at a time for each of thousands of tensors adds up.
  void prefetch(size_t index) const {
    constexpr size_t kAhead = 8;
    if (index + kAhead >= handles_.size()) return;
    const char* ahead = *reinterpret_cast<const char* const*>(handles_[index + kAhead]);
    constexpr int kLine = 64;
    __builtin_prefetch(ahead);
    __builtin_prefetch(ahead + kLine);
    __builtin_prefetch(ahead + 2 * kLine);
  }

 private:
  std::vector<AtenTensorHandle> handles_;
};

// Another reference to a tensor.
Tensor tensor_of(AtenTensorHandle handle);

}  // namespace lightning_mp::bind
