// Refuses what does not fit together, before anything is written. The references in
// lightning_mp/kernels/reference/checks.py say the same in the same words.
#pragma once

#include <optional>
#include <string>

#include "bind/tensor_handles.h"
#include "bind/tensor_info.h"
#include "common/found_inf.h"

namespace lightning_mp::bind {

// Throws "lightning_mp::<op>: <found>; <needed> is needed".
[[noreturn]] void refuse(const char* op, const std::string& found, const std::string& needed);

// `name` has as many tensors as `pivot`.
void check_length(const char* op, const char* name, const TensorHandles& tensors, const char* pivot,
                  size_t size);

void check_device(const char* op, const std::string& name, const TensorInfo& info,
                  const TensorInfo& expected);

// Scalars that live on the device: tensors of one element, all on the device of the first tensor
// that is seen.
class ScalarChecks {
 public:
  explicit ScalarChecks(const char* op) : op_(op) {}

  ScalarChecks(const char* op, const TensorHandles& tensors);

  void check(const std::string& name, AtenTensorHandle scalar, DType dtype = DType::kFloat32);
  void check(const std::string& name, const Tensor& scalar, DType dtype = DType::kFloat32);
  void check(const std::string& name, const std::optional<Tensor>& scalar);

  // One flag for all of `num_tensors` tensors, or one for each.
  FoundInf check_found_inf(const Tensor& flags, size_t num_tensors);

 private:
  const char* op_;
  std::optional<TensorInfo> expected_;
};

// `value` in [low, below).
void check_range(const char* op, const char* argument, double value, double low = 0.0,
                 std::optional<double> below = std::nullopt);

// `value` in [0, 1].
void check_share(const char* op, const char* argument, double value);

// `value` above 0, if there is one.
void check_positive(const char* op, const char* argument, std::optional<double> value);

}  // namespace lightning_mp::bind
