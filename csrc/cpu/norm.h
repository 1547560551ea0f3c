// Sums of squares of many tensors.
#pragma once

#include <vector>

#include "common/found_inf.h"
#include "common/row_table.h"
#include "cpu/isa.h"
#include "cpu/walk.h"

namespace lightning_mp::cpu {

struct SumsOfSquares {
  double total = 0.0;
  // One per row.
  std::vector<double> each;
};

// Of the tensors that every row has under `role`. Notes rows with an element that is not finite.
SumsOfSquares sums_of_squares(const RowTable& table, int role, FoundInf found_inf, Isa isa,
                              const ParallelFor& parallel_for);

}  // namespace lightning_mp::cpu
