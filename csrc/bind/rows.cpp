#include "bind/rows.h"

#include <torch/csrc/stable/ops.h>
#include <torch/headeronly/util/shim_utils.h>

#include <array>

#include "bind/checks.h"

namespace lightning_mp::bind {
namespace {

Tensor new_empty_strided(const Tensor& like, const std::vector<int64_t>& sizes,
                         const std::vector<int64_t>& strides) {
  using torch::stable::detail::from;
  std::array<StableIValue, 7> stack{from(like),         from(sizes),        from(strides),
                                    from(std::nullopt), from(std::nullopt), from(std::nullopt),
                                    from(std::nullopt)};
  TORCH_ERROR_CODE_CHECK(
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

std::string entry_name(const RowList& list, size_t index) {
  return std::string(list.name) + "[" + std::to_string(index) + "]";
}

std::string allowed_names(unsigned dtypes) {
  std::string names;
  for (int code = 0; code < 8; ++code) {
    const DType dtype = static_cast<DType>(code);
    if (dtypes & bit(dtype)) names += (names.empty() ? "" : " or ") + dtype_name(dtype);
  }
  return names;
}

void check_entry(const char* op, const RowList& list, size_t index, const TensorInfo& info,
                 const RowList& pivot_list, const TensorInfo& pivot) {
  if (!(list.dtypes & bit(info.dtype))) {
    refuse(op, entry_name(list, index) + " is " + dtype_name(list.tensors[index]),
           allowed_names(list.dtypes));
  }
  if (!has_same_sizes(info, pivot)) {
    refuse(op, entry_name(list, index) + " has shape " + shape_text(info),
           shape_text(pivot) + ", as " + entry_name(pivot_list, index) + ",");
  }
  if (list.is_written && has_repeats(info)) {
    refuse(op, entry_name(list, index) + " has elements in one place",
           "memory of its own for each");
  }
}

void* data_of(AtenTensorHandle tensor, bool is_written) {
  void* data;
  if (is_written) {
    TORCH_ERROR_CODE_CHECK(torch_get_mutable_data_ptr(tensor, &data));
    return data;
  }
  const void* const_data;
  TORCH_ERROR_CODE_CHECK(torch_get_const_data_ptr(tensor, &const_data));
  return const_cast<void*>(const_data);
}

}  // namespace

void* StandIns::add(AtenTensorHandle tensor, const TensorInfo& info, const TensorInfo& pivot,
                    bool is_read, bool is_written) {
  const Tensor original = tensor_of(tensor);
  Tensor copy =
      new_empty_strided(original, {info.sizes, info.sizes + info.dim}, dense_strides(pivot));
  if (is_read) torch::stable::copy_(copy, original);
  if (is_written) written_.emplace_back(original, copy);
  copies_.push_back(copy);
  return copy.mutable_data_ptr();
}

void StandIns::write_back() {
  for (auto& [original, copy] : written_) torch::stable::copy_(original, copy);
}

RowTable make_rows(const char* op, const std::vector<RowList>& lists, StandIns& stand_ins) {
  const RowList& pivots = lists.front();
  const size_t size = pivots.tensors.size();
  for (const RowList& list : lists) check_length(op, list.name, list.tensors, pivots.name, size);
  RowTable table;
  table.rows.reserve(size);
  for (size_t i = 0; i < size; ++i) {
    const TensorInfo pivot = info_of(pivots.tensors[i]);
    const TensorInfo first = i == 0 ? pivot : info_of(pivots.tensors[0]);
    const bool is_pivot_dense = is_dense(pivot);
    TensorRow row = {};
    row.numel = pivot.numel;
    for (const RowList& list : lists) {
      list.tensors.prefetch(i);
      const TensorInfo info = &list == &pivots ? pivot : info_of(list.tensors[i]);
      if (!has_same_device(info, first)) check_device(op, entry_name(list, i), info, first);
      if (list.is_optional && info.numel == 0) continue;
      check_entry(op, list, i, info, pivots, pivot);
      row.dtypes[list.role] = info.dtype;
      if (info.numel == 0) continue;
      const bool fits = is_pivot_dense && has_same_strides(info, pivot);
      row.tensors[list.role] =
          fits ? data_of(list.tensors[i], list.is_written)
               : stand_ins.add(list.tensors[i], info, pivot, list.is_read, list.is_written);
    }
    table.add(row);
  }
  return table;
}

}  // namespace lightning_mp::bind
