// A table of rows in device memory. Any number of tensors of any sizes is one launch: a block finds
// the row of a chunk by itself.
#pragma once

#include <stdint.h>

#include "common/row.h"

namespace lightning_mp::cuda {

// Elements of a row that a block of threads handles at once.
constexpr int64_t kChunk = 16384;

struct DeviceTable {
  const TensorRow* rows;
  // Chunks in the rows before each row; rows without elements have none.
  const int64_t* first_chunks;
  int64_t num_rows;
  int64_t num_chunks;
};

}  // namespace lightning_mp::cuda
