#include "bind/checks.h"

#include <torch/headeronly/util/Exception.h>

#include <algorithm>
#include <cstdio>

namespace lightning_mp::bind {
namespace {

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", value);
  return text;
}

void check_device(const char* op, const std::string& what, const TensorInfo& info,
                  const TensorInfo& expected) {
  if (has_same_device(info, expected)) return;
  refuse(op, what + " is on " + device_name(info),
         "one device for all, here " + device_name(expected) + ",");
}

void check_entry(const char* op, const TensorList& list, size_t index, const TensorInfo& info,
                 const TensorList& pivot, const TensorInfo& expected) {
  if (list.is_optional && info.numel == 0) return;
  const auto name = [&](const TensorList& of) {
    return std::string(of.name) + "[" + std::to_string(index) + "]";
  };
  if (std::find(list.dtypes.begin(), list.dtypes.end(), info.dtype) == list.dtypes.end()) {
    std::string allowed;
    for (DType dtype : list.dtypes) allowed += (allowed.empty() ? "" : " or ") + dtype_name(dtype);
    refuse(op, name(list) + " is " + dtype_name(list.tensors[index]), allowed);
  }
  if (!has_same_sizes(info, expected)) {
    refuse(op, name(list) + " has shape " + shape_text(info),
           shape_text(expected) + ", as " + name(pivot) + ",");
  }
  if (list.is_written && has_repeats(info)) {
    refuse(op, name(list) + " has elements in one place", "memory of its own for each");
  }
}

}  // namespace

const std::vector<DType> kFloating = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

void refuse(const char* op, const std::string& found, const std::string& needed) {
  STD_TORCH_CHECK(false, "lightning_mp::", op, ": ", found, "; ", needed, " is needed");
  __builtin_unreachable();
}

void check_length(const char* op, const TensorList& list, const TensorList& pivot) {
  if (list.tensors.size() == pivot.tensors.size()) return;
  refuse(op, std::string(list.name) + " has " + std::to_string(list.tensors.size()) + " tensors",
         std::to_string(pivot.tensors.size()) + ", as " + pivot.name + ",");
}

ListInfos check_lists(const char* op, const std::vector<TensorList>& lists) {
  const TensorList& pivot = lists.front();
  for (const TensorList& list : lists) check_length(op, list, pivot);
  ListInfos infos(lists.size());
  for (size_t k = 0; k < lists.size(); ++k) {
    infos[k].reserve(pivot.tensors.size());
    for (size_t i = 0; i < pivot.tensors.size(); ++i) {
      infos[k].push_back(info_of(lists[k].tensors[i]));
      const TensorInfo& info = infos[k].back();
      if (!has_same_device(info, infos[0][0])) {
        check_device(op, std::string(lists[k].name) + "[" + std::to_string(i) + "]", info,
                     infos[0][0]);
      }
      check_entry(op, lists[k], i, info, pivot, infos[0][i]);
    }
  }
  return infos;
}

void check_scalars(const char* op, const ListInfos& infos,
                   const std::vector<DeviceScalar>& scalars) {
  std::optional<TensorInfo> expected;
  if (!infos.empty() && !infos[0].empty()) expected = infos[0][0];
  for (const DeviceScalar& scalar : scalars) {
    if (scalar.tensor == nullptr) continue;
    const TensorInfo info = info_of(*scalar.tensor);
    if (info.dtype != scalar.dtype || info.numel != 1) {
      refuse(op,
             scalar.name + " is " + dtype_name(*scalar.tensor) + " with " +
                 std::to_string(info.numel) + " elements",
             dtype_name(scalar.dtype) + " with 1 element");
    }
    if (!expected) expected = info;
    check_device(op, scalar.name, info, *expected);
  }
}

const Tensor* pointer_to(const std::optional<Tensor>& tensor) {
  return tensor ? &*tensor : nullptr;
}

void check_range(const char* op, const char* argument, double value, double low,
                 std::optional<double> below) {
  if (value >= low && (!below || value < *below)) return;
  refuse(op, std::string(argument) + " = " + number(value),
         "a number at least " + number(low) + (below ? " and below " + number(*below) : ""));
}

void check_positive(const char* op, const char* argument, std::optional<double> value) {
  if (!value || *value > 0.0) return;
  refuse(op, std::string(argument) + " = " + number(*value), "a number above 0");
}

}  // namespace lightning_mp::bind
