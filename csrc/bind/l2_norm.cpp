// lightning_mp::l2_norm
#include <torch/csrc/stable/library.h>

#include <cmath>
#include <tuple>

#include "bind/cpu_calls.h"
#include "bind/rows.h"
#include "cpu/norm.h"

namespace lightning_mp::bind {
namespace {

std::tuple<Tensor, Tensor> l2_norm_cpu(StableListHandle tensor_list, bool per_tensor) {
  const TensorHandles tensors(tensor_list);
  StandIns stand_ins;
  const RowTable table = make_rows("l2_norm", {{"tensors", tensors, kInput, kFloating}}, stand_ins);
  const cpu::SumsOfSquares sums =
      cpu::sums_of_squares(table, kInput, cpu::active_isa(), torch_parallel_for());
  // Without tensors nothing says that this is for the CPU, and the reference runs.
  const Tensor like = tensor_of(tensors[0]);
  const auto float32 = torch::headeronly::ScalarType::Float;
  const int64_t num_each = per_tensor ? static_cast<int64_t>(tensors.size()) : 0;
  const std::vector<int64_t> each_size = {num_each};
  Tensor total = torch::stable::new_empty(like, {}, float32);
  Tensor each = torch::stable::new_empty(like, each_size, float32);
  *total.mutable_data_ptr<float>() = static_cast<float>(std::sqrt(sums.total));
  for (int64_t i = 0; i < num_each; ++i) {
    each.mutable_data_ptr<float>()[i] = static_cast<float>(std::sqrt(sums.each[i]));
  }
  return {total, each};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(lightning_mp, CPU, library) {
  library.impl("l2_norm", TORCH_BOX(&l2_norm_cpu));
}

}  // namespace lightning_mp::bind
