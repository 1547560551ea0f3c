#include "bind/tensor_info.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <algorithm>

namespace lightning_mp::bind {
namespace {

using torch::headeronly::ScalarType;

DType dtype_of(int32_t code) {
  // Numbers that only torch knows; they do not change while a process lives.
  static const int32_t float32 = aoti_torch_dtype_float32();
  static const int32_t bfloat16 = aoti_torch_dtype_bfloat16();
  static const int32_t float16 = aoti_torch_dtype_float16();
  static const int32_t int16 = aoti_torch_dtype_int16();
  static const int32_t int32 = aoti_torch_dtype_int32();
  return code == float32    ? DType::kFloat32
         : code == bfloat16 ? DType::kBFloat16
         : code == float16  ? DType::kFloat16
         : code == int16    ? DType::kInt16
         : code == int32    ? DType::kInt32
                            : DType::kNone;
}

}  // namespace

TensorInfo info_of(const Tensor& tensor) {
  TensorInfo info;
  int32_t code;
  int64_t* sizes;
  int64_t* strides;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_numel(tensor.get(), &info.numel));
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(tensor.get(), &info.dim));
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(tensor.get(), &sizes));
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(tensor.get(), &strides));
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &code));
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(tensor.get(), &info.device_type));
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(tensor.get(), &info.device_index));
  info.sizes = sizes;
  info.strides = strides;
  info.dtype = dtype_of(code);
  return info;
}

bool has_same_device(const TensorInfo& a, const TensorInfo& b) {
  // A CPU has no index: some tensors say -1, some 0.
  return a.device_type == b.device_type &&
         (a.device_type == aoti_torch_device_type_cpu() || a.device_index == b.device_index);
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
  int64_t expected = 1;
  int64_t i = info.dim;
  // Contiguous tensors are common and need no memory here.
  for (; i > 0; --i) {
    if (info.sizes[i - 1] == 1) continue;
    if (info.strides[i - 1] != expected) break;
    expected *= info.sizes[i - 1];
  }
  if (i == 0 || info.numel == 0) return true;
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

std::string dtype_name(const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case ScalarType::Double:
      return "float64";
    case ScalarType::Float:
      return "float32";
    case ScalarType::BFloat16:
      return "bfloat16";
    case ScalarType::Half:
      return "float16";
    case ScalarType::Long:
      return "int64";
    case ScalarType::Int:
      return "int32";
    case ScalarType::Short:
      return "int16";
    case ScalarType::Bool:
      return "bool";
    default:
      return torch::headeronly::toString(tensor.scalar_type());
  }
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
    case DType::kNone:
      break;
  }
  return "none";
}

std::string device_name(const TensorInfo& info) {
  if (info.device_type == aoti_torch_device_type_cpu()) return "cpu";
  const std::string index = ":" + std::to_string(info.device_index);
  if (info.device_type == aoti_torch_device_type_cuda()) return "cuda" + index;
  if (info.device_type == aoti_torch_device_type_meta()) return "meta";
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
