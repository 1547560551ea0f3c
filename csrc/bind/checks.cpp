#include "bind/checks.h"

#include <torch/headeronly/util/Exception.h>

#include <cstdio>

namespace lightning_mp::bind {
namespace {

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", value);
  return text;
}

}  // namespace

void refuse(const char* op, const std::string& found, const std::string& needed) {
  STD_TORCH_CHECK(false, "lightning_mp::", op, ": ", found, "; ", needed, " is needed");
  __builtin_unreachable();
}

void check_length(const char* op, const char* name, const TensorHandles& tensors, const char* pivot,
                  size_t size) {
  if (tensors.size() == size) return;
  refuse(op, std::string(name) + " has " + std::to_string(tensors.size()) + " tensors",
         std::to_string(size) + ", as " + pivot + ",");
}

void check_device(const char* op, const std::string& name, const TensorInfo& info,
                  const TensorInfo& expected) {
  if (has_same_device(info, expected)) return;
  refuse(op, name + " is on " + device_name(info),
         "one device for all, here " + device_name(expected) + ",");
}

ScalarChecks::ScalarChecks(const char* op, const TensorHandles& tensors) : op_(op) {
  if (tensors.size() > 0) expected_ = info_of(tensors[0]);
}

void ScalarChecks::check(const std::string& name, AtenTensorHandle scalar, DType dtype) {
  const TensorInfo info = info_of(scalar);
  if (info.dtype != dtype || info.numel != 1) {
    refuse(op_,
           name + " is " + dtype_name(scalar) + " with " + std::to_string(info.numel) + " elements",
           dtype_name(dtype) + " with 1 element");
  }
  if (!expected_) expected_ = info;
  check_device(op_, name, info, *expected_);
}

void ScalarChecks::check(const std::string& name, const Tensor& scalar, DType dtype) {
  check(name, scalar.get(), dtype);
}

void ScalarChecks::check(const std::string& name, const std::optional<Tensor>& scalar) {
  if (scalar) check(name, scalar->get());
}

FoundInf ScalarChecks::check_found_inf(const Tensor& flags, size_t num_tensors) {
  const TensorInfo info = info_of(flags.get());
  const auto count = static_cast<int64_t>(num_tensors);
  const bool is_list = info.dim == 1 && info.sizes[0] == count && is_dense(info);
  if (info.dtype != DType::kFloat32 || (info.numel != 1 && !is_list)) {
    refuse(op_,
           "found_inf is " + dtype_name(flags.get()) + " with " + std::to_string(info.numel) +
               " elements",
           "float32 with 1 element, or contiguous with shape [" + std::to_string(count) + "],");
  }
  if (!expected_) expected_ = info;
  check_device(op_, "found_inf", info, *expected_);
  return {flags.mutable_data_ptr<float>(), info.numel == 1 ? 0 : 1};
}

void check_range(const char* op, const char* argument, double value, double low,
                 std::optional<double> below) {
  if (value >= low && (!below || value < *below)) return;
  refuse(op, std::string(argument) + " = " + number(value),
         "a number at least " + number(low) + (below ? " and below " + number(*below) : ""));
}

void check_share(const char* op, const char* argument, double value) {
  if (value >= 0.0 && value <= 1.0) return;
  refuse(op, std::string(argument) + " = " + number(value), "a number from 0 to 1");
}

void check_positive(const char* op, const char* argument, std::optional<double> value) {
  if (!value || *value > 0.0) return;
  refuse(op, std::string(argument) + " = " + number(*value), "a number above 0");
}

}  // namespace lightning_mp::bind
