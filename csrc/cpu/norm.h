// Sums of squares of many tensors.
#pragma once

#include <vector>

#include "common/row_table.h"
#include "cpu/isa.h"
#include "cpu/walk.h"

namespace lightning_mp::cpu {

struct SumsOfSquares {
  double total = 0.0;
  // One per row.
  std::vector<double> each;
  // Whether an element is infinite or NaN.
  bool has_inf = false;
};

// Of the tensors that every row has under `role`.
SumsOfSquares sums_of_squares(const RowTable& table, int role, Isa isa,
                              const ParallelFor& parallel_for);

}  // namespace lightning_mp::cpu
