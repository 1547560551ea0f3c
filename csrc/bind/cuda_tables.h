// Tables of rows in device memory.
#pragma once

#include <vector>

#include "bind/cuda_call.h"
#include "common/row_table.h"
#include "cuda/device_table.h"

namespace lightning_mp::bind {

struct UploadedTable {
  // What the pointers point into.
  Tensor memory;
  cuda::DeviceTable table;
  // One counter per row, if there are any.
  float* const* steps;
};

// A table that was uploaded before, byte for byte the same, is not uploaded again: what a kernel
// depends on (pointers, sizes, dtypes) is all there is in it. The last few are kept; while a graph
// is being captured none is, as the graph has to keep its own.
UploadedTable upload_rows(const RowTable& rows, int64_t chunk_size,
                          const std::vector<float*>& steps, const CudaCall& call);

}  // namespace lightning_mp::bind
