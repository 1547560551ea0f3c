#include "bind/layouts.h"

#include <torch/csrc/stable/ops.h>

#include <array>

namespace lightning_mp::bind {
namespace {

Tensor new_empty_strided(const Tensor& like, const std::vector<int64_t>& sizes,
                         const std::vector<int64_t>& strides) {
  using torch::stable::detail::from;
  std::array<StableIValue, 7> stack{from(like),         from(sizes),        from(strides),
                                    from(std::nullopt), from(std::nullopt), from(std::nullopt),
                                    from(std::nullopt)};
  STABLE_TORCH_ERROR_CODE_CHECK(
      torch_call_dispatcher("aten::new_empty_strided", "", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

std::vector<int64_t> dense_strides(const TensorInfo& pivot) {
  if (is_dense(pivot)) return {pivot.strides, pivot.strides + pivot.dim};
  std::vector<int64_t> strides(pivot.dim);
  int64_t stride = 1;
  for (int64_t i = pivot.dim; i > 0; --i) {
    strides[i - 1] = stride;
    stride *= pivot.sizes[i - 1];
  }
  return strides;
}

}  // namespace

void Layouts::place(TensorRow& row, int role, const Tensor& tensor, const TensorInfo& info,
                    const TensorInfo& pivot, bool is_read, bool is_written) {
  row.dtypes[role] = info.dtype;
  row.tensors[role] = nullptr;
  if (info.numel == 0) return;
  if (has_same_strides(info, pivot) && is_dense(pivot)) {
    row.tensors[role] =
        is_written ? tensor.mutable_data_ptr() : const_cast<void*>(tensor.const_data_ptr());
    return;
  }
  Tensor stand_in =
      new_empty_strided(tensor, {info.sizes, info.sizes + info.dim}, dense_strides(pivot));
  if (is_read) torch::stable::copy_(stand_in, tensor);
  if (is_written) written_.emplace_back(tensor, stand_in);
  row.tensors[role] = stand_in.mutable_data_ptr();
  stand_ins_.push_back(std::move(stand_in));
}

void Layouts::write_back() {
  for (auto& [original, stand_in] : written_) torch::stable::copy_(original, stand_in);
}

}  // namespace lightning_mp::bind
