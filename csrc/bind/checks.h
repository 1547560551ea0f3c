// Refuses what does not fit together, before anything is written. The references in
// lightning_mp/kernels/reference/checks.py say the same in the same words.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bind/tensor_info.h"

namespace lightning_mp::bind {

// Throws "lightning_mp::<op>: <found>; <needed> is needed".
[[noreturn]] void refuse(const char* op, const std::string& found, const std::string& needed);

// One list of tensors of an operation.
struct TensorList {
  const char* name;
  const std::vector<Tensor>& tensors;
  std::vector<DType> dtypes;
  // A tensor without elements, of whatever type, stands for none.
  bool is_optional = false;
  bool is_written = false;
};

extern const std::vector<DType> kFloating;

// One vector per list. All lists have to match the first in length, shapes and device.
using ListInfos = std::vector<std::vector<TensorInfo>>;

void check_length(const char* op, const TensorList& list, const TensorList& pivot);

ListInfos check_lists(const char* op, const std::vector<TensorList>& lists);

// A scalar that lives on the device: one element.
struct DeviceScalar {
  std::string name;
  const Tensor* tensor;
  DType dtype = DType::kFloat32;
};

void check_scalars(const char* op, const ListInfos& infos,
                   const std::vector<DeviceScalar>& scalars);

const Tensor* pointer_to(const std::optional<Tensor>& tensor);

// `value` in [low, below).
void check_range(const char* op, const char* argument, double value, double low = 0.0,
                 std::optional<double> below = std::nullopt);

// `value` above 0.
void check_positive(const char* op, const char* argument, std::optional<double> value);

}  // namespace lightning_mp::bind
