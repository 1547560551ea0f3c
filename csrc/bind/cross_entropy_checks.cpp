#include <limits>
#include <vector>

#include "bind/checks.h"
#include "bind/cross_entropy.h"

namespace lightning_mp::bind {
namespace {

void check_shape(const char* op, const char* name, const TensorInfo& info,
                 const std::vector<int64_t>& sizes) {
  const int64_t dim = static_cast<int64_t>(sizes.size());
  TensorInfo needed = info;
  needed.dim = dim;
  needed.sizes = sizes.data();
  if (has_same_sizes(info, needed)) return;
  refuse(op, std::string(name) + " has shape " + shape_text(info), shape_text(needed));
}

// What stands beside logits: a tensor of one type, of a shape that they give, where they are.
void check_beside(const char* op, const char* name, const Tensor& tensor, DType dtype,
                  const std::vector<int64_t>& sizes, const TensorInfo& logits) {
  const TensorInfo info = info_of(tensor.get());
  check_device(op, name, info, logits);
  if (info.dtype != dtype) {
    refuse(op, std::string(name) + " is " + dtype_name(tensor.get()), dtype_name(dtype));
  }
  check_shape(op, name, info, sizes);
}

}  // namespace

CrossEntropyInputs checked_inputs(const char* op, CrossEntropyArguments& arguments) {
  const TensorInfo info = info_of(arguments.logits.get());
  if (info.dtype != DType::kBFloat16 && info.dtype != DType::kFloat16) {
    refuse(op, "logits is " + dtype_name(arguments.logits.get()), "bfloat16 or float16");
  }
  if (info.dim != 2 || info.sizes[1] > std::numeric_limits<int32_t>::max()) {
    refuse(op, "logits has shape " + shape_text(info), "[rows, classes], with classes below 2^31,");
  }
  const int64_t num_rows = info.sizes[0];
  const int64_t num_classes = info.sizes[1];
  check_beside(op, "target", arguments.target, DType::kInt64, {num_rows}, info);
  if (arguments.weight) {
    check_beside(op, "weight", *arguments.weight, DType::kFloat32, {num_classes}, info);
  }
  const double smoothing = arguments.label_smoothing;
  check_share(op, "label_smoothing", smoothing);
  const bool is_dense_row = num_classes <= 1 || info.strides[1] == 1;
  if (!is_dense_row) arguments.logits = torch::stable::contiguous(arguments.logits);
  arguments.target = torch::stable::contiguous(arguments.target);
  if (arguments.weight) arguments.weight = torch::stable::contiguous(*arguments.weight);
  CrossEntropyInputs inputs = {};
  inputs.logits = arguments.logits.const_data_ptr();
  inputs.targets = arguments.target.const_data_ptr<int64_t>();
  if (arguments.weight) inputs.class_weights = arguments.weight->const_data_ptr<float>();
  inputs.num_rows = num_rows;
  inputs.num_classes = num_classes;
  inputs.row_stride = is_dense_row ? info.strides[0] : num_classes;
  inputs.ignore_index = arguments.ignore_index;
  inputs.target_share = static_cast<float>(1.0 - smoothing);
  inputs.uniform_share = static_cast<float>(smoothing / static_cast<double>(num_classes));
  inputs.dtype = info.dtype;
  return inputs;
}

void check_backward(const char* op, const Tensor& logits, Tensor& gradient, Tensor& statistics) {
  const TensorInfo info = info_of(logits.get());
  check_beside(op, "gradient", gradient, DType::kFloat32, {info.sizes[0]}, info);
  check_beside(op, "statistics", statistics, DType::kFloat32, {info.sizes[0], 3}, info);
  gradient = torch::stable::contiguous(gradient);
  statistics = torch::stable::contiguous(statistics);
}

}  // namespace lightning_mp::bind
