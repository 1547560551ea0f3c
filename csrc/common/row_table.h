// The rows of one call, on the host.
#pragma once

#include <stdint.h>

#include <vector>

#include "common/row.h"

namespace lightning_mp {

// Row i belongs to place i of the caller's lists; rows without elements stay in.
struct RowTable {
  std::vector<TensorRow> rows;
  // Elements of all rows together.
  int64_t numel = 0;

  void add(TensorRow row) {
    row.first = numel;
    numel += row.numel;
    rows.push_back(row);
  }
};

}  // namespace lightning_mp
