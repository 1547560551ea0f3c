// Makes a table of rows of lists of tensors: checks them and gives each row one memory layout.
#pragma once

#include <utility>
#include <vector>

#include "bind/tensor_handles.h"
#include "bind/tensor_info.h"
#include "common/row_table.h"

namespace lightning_mp::bind {

constexpr unsigned bit(DType dtype) { return 1u << static_cast<unsigned>(dtype); }

constexpr unsigned kFloat32Only = bit(DType::kFloat32);
constexpr unsigned kHalfTypes = bit(DType::kBFloat16) | bit(DType::kFloat16);
constexpr unsigned kFloating = kFloat32Only | kHalfTypes;

// One list of tensors of an operation.
struct RowList {
  const char* name;
  const TensorHandles& tensors;
  // The place of its tensors in a row.
  int role;
  // The types that are allowed, by bit().
  unsigned dtypes;
  bool is_read = true;
  bool is_written = false;
  // A tensor without elements, of whatever type, stands for none.
  bool is_optional = false;
};

// Tensors whose layout differs from that of their row are stood in for by copies, which live as
// long as this does.
class StandIns {
 public:
  // Returns the data of a copy of `tensor` in the layout of `pivot` if that is dense, contiguous if
  // not. What is not read may hold anything.
  void* add(AtenTensorHandle tensor, const TensorInfo& info, const TensorInfo& pivot, bool is_read,
            bool is_written);

  // Brings back what was written to copies.
  void write_back();

 private:
  std::vector<Tensor> copies_;
  // Original and copy.
  std::vector<std::pair<Tensor, Tensor>> written_;
};

// Row i has the tensors at place i of all lists. All of them match the one of the first list in
// shape and device. Throws for what does not fit, with nothing written.
RowTable make_rows(const char* op, const std::vector<RowList>& lists, StandIns& stand_ins);

}  // namespace lightning_mp::bind
