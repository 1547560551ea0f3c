// What all launchers share.
#pragma once

#include "cuda/launch.h"
#include "cuda/platform.cuh"

namespace lightning_mp::cuda {

// One block for each piece of work, as far as that goes: kernels loop over what is left. The order
// of blocks never counts.
inline int64_t grid_for(int64_t num_pieces) {
  constexpr int64_t kMaxGrid = 1 << 20;
  return num_pieces < kMaxGrid ? num_pieces : kMaxGrid;
}

inline cudaStream_t stream_of(StreamHandle handle) { return static_cast<cudaStream_t>(handle); }

inline int last_error() { return static_cast<int>(cudaGetLastError()); }

}  // namespace lightning_mp::cuda
