// lightning_mp::l2_norm up to where a device runs it.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <tuple>

#include "bind/rows.h"

namespace lightning_mp::bind {

struct L2NormCall {
  const RowTable& table;
  const Tensor& total;
  // One norm per row, or none.
  const Tensor& each;
};

template <void (*run)(const L2NormCall&)>
std::tuple<Tensor, Tensor> l2_norm(StableListHandle tensor_list, bool per_tensor) {
  const TensorHandles tensors(tensor_list);
  StandIns stand_ins;
  const RowTable table = make_rows("l2_norm", {{"tensors", tensors, kInput, kFloating}}, stand_ins);
  // Without tensors nothing says which device this is for, and the reference runs.
  const Tensor like = tensor_of(tensors[0]);
  const auto float32 = torch::headeronly::ScalarType::Float;
  const int64_t num_each = per_tensor ? static_cast<int64_t>(tensors.size()) : 0;
  const std::vector<int64_t> each_size = {num_each};
  const Tensor total = torch::stable::new_empty(like, {}, float32);
  const Tensor each = torch::stable::new_empty(like, each_size, float32);
  run({table, total, each});
  return {total, each};
}

}  // namespace lightning_mp::bind
