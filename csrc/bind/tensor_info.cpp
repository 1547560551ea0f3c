#include "bind/tensor_info.h"

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/shim_utils.h>

#include <algorithm>
#include <vector>

namespace lightning_mp::bind {
namespace {

DType dtype_of(int32_t code) {
  // Numbers that only torch knows; they do not change while a process lives.
  static const int32_t float32 = aoti_torch_dtype_float32();
  static const int32_t bfloat16 = aoti_torch_dtype_bfloat16();
  static const int32_t float16 = aoti_torch_dtype_float16();
  static const int32_t int16 = aoti_torch_dtype_int16();
  static const int32_t int32 = aoti_torch_dtype_int32();
  static const int32_t int64 = aoti_torch_dtype_int64();
  return code == float32    ? DType::kFloat32
         : code == bfloat16 ? DType::kBFloat16
         : code == float16  ? DType::kFloat16
         : code == int16    ? DType::kInt16
         : code == int32    ? DType::kInt32
         : code == int64    ? DType::kInt64
                            : DType::kNone;
}

int32_t dtype_code(AtenTensorHandle tensor) {
  int32_t code;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor, &code));
  return code;
}

}  // namespace

TensorInfo info_of(AtenTensorHandle tensor) {
  static const int32_t cpu = aoti_torch_device_type_cpu();
  TensorInfo info;
  int64_t* sizes;
  int64_t* strides;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_numel(tensor, &info.numel));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(tensor, &info.dim));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(tensor, &sizes));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(tensor, &strides));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(tensor, &info.device_type));
  info.device_index = 0;
  if (info.device_type != cpu) {
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(tensor, &info.device_index));
  }
  info.sizes = sizes;
  info.strides = strides;
  info.dtype = dtype_of(dtype_code(tensor));
  return info;
}

bool has_same_device(const TensorInfo& a, const TensorInfo& b) {
  return a.device_type == b.device_type && a.device_index == b.device_index;
}

bool has_same_sizes(const TensorInfo& a, const TensorInfo& b) {
  return a.dim == b.dim && std::equal(a.sizes, a.sizes + a.dim, b.sizes);
}

bool has_same_strides(const TensorInfo& a, const TensorInfo& b) {
  for (int64_t i = 0; i < a.dim; ++i) {
    if (a.sizes[i] > 1 && a.strides[i] != b.strides[i]) return false;
  }
  return true;
}

bool is_dense(const TensorInfo& info) {
  if (info.numel == 0) return true;
  // Contiguous tensors are common and need no memory here.
  int64_t expected = 1;
  int64_t i = info.dim;
  for (; i > 0; --i) {
    if (info.sizes[i - 1] == 1) continue;
    if (info.strides[i - 1] != expected) break;
    expected *= info.sizes[i - 1];
  }
  if (i == 0) return true;
  std::vector<int64_t> order;
  for (int64_t k = 0; k < info.dim; ++k) {
    if (info.sizes[k] > 1) order.push_back(k);
  }
  std::sort(order.begin(), order.end(),
            [&](int64_t a, int64_t b) { return info.strides[a] < info.strides[b]; });
  expected = 1;
  for (int64_t k : order) {
    if (info.strides[k] != expected) return false;
    expected *= info.sizes[k];
  }
  return true;
}

bool has_repeats(const TensorInfo& info) {
  for (int64_t i = 0; i < info.dim; ++i) {
    if (info.sizes[i] > 1 && info.strides[i] == 0) return true;
  }
  return false;
}

std::string dtype_name(AtenTensorHandle tensor) {
  const int32_t code = dtype_code(tensor);
  const DType dtype = dtype_of(code);
  if (dtype != DType::kNone) return dtype_name(dtype);
  if (code == aoti_torch_dtype_float64()) return "float64";
  if (code == aoti_torch_dtype_bool()) return "bool";
  return "of dtype number " + std::to_string(code);
}

std::string dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat16:
      return "float16";
    case DType::kInt16:
      return "int16";
    case DType::kInt32:
      return "int32";
    case DType::kInt64:
      return "int64";
    case DType::kNone:
      break;
  }
  return "none";
}

std::string device_name(const TensorInfo& info) {
  if (info.device_type == aoti_torch_device_type_cpu()) return "cpu";
  if (info.device_type == aoti_torch_device_type_meta()) return "meta";
  const std::string index = ":" + std::to_string(info.device_index);
  if (info.device_type == aoti_torch_device_type_cuda()) return "cuda" + index;
  return "device type " + std::to_string(info.device_type) + index;
}

std::string shape_text(const TensorInfo& info) {
  std::string text = "[";
  for (int64_t i = 0; i < info.dim; ++i) {
    text += (i ? ", " : "") + std::to_string(info.sizes[i]);
  }
  return text + "]";
}

}  // namespace lightning_mp::bind
