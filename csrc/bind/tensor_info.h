// What the checks and the tables need of a tensor, read once.
#pragma once

#include <stdint.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <string>

#include "common/dtype.h"

namespace lightning_mp::bind {

struct TensorInfo {
  int64_t numel;
  int64_t dim;
  const int64_t* sizes;
  const int64_t* strides;
  // kNone for a type that no kernel knows.
  DType dtype;
  int32_t device_type;
  // 0 for the CPU.
  int32_t device_index;
};

TensorInfo info_of(AtenTensorHandle tensor);

bool has_same_device(const TensorInfo& a, const TensorInfo& b);

bool has_same_sizes(const TensorInfo& a, const TensorInfo& b);

// Whether element i in storage of one is element i in storage of the other, both of the same sizes.
// The stride of a dimension of size 1 says nothing.
bool has_same_strides(const TensorInfo& a, const TensorInfo& b);

// Whether the elements fill their memory without gaps, each in a place of its own.
bool is_dense(const TensorInfo& info);

// Whether a dimension repeats its elements, as that of an expanded tensor does.
bool has_repeats(const TensorInfo& info);

// As Python shows them: "float32", "cuda:0", "[2, 3]".
std::string dtype_name(AtenTensorHandle tensor);
std::string dtype_name(DType dtype);
std::string device_name(const TensorInfo& info);
std::string shape_text(const TensorInfo& info);

}  // namespace lightning_mp::bind
