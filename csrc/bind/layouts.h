// Gives the tensors of a row one memory layout.
#pragma once

#include <utility>
#include <vector>

#include "bind/tensor_info.h"
#include "common/row.h"

namespace lightning_mp::bind {

// Tensors whose layout differs from that of their row are stood in for by copies, which live as
// long as this does.
class Layouts {
 public:
  // Puts a tensor into a row as `role`, in the layout of `pivot` if that is dense, and contiguous
  // if not. What is not read may hold anything in the meantime.
  void place(TensorRow& row, int role, const Tensor& tensor, const TensorInfo& info,
             const TensorInfo& pivot, bool is_read, bool is_written);

  // Brings back what was written to stand-ins.
  void write_back();

 private:
  std::vector<Tensor> stand_ins_;
  // Original and stand-in.
  std::vector<std::pair<Tensor, Tensor>> written_;
};

}  // namespace lightning_mp::bind
