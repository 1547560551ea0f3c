// Host memory to device memory by way of kernel arguments. Unlike a copy from pageable memory it
// never waits for the device, and a captured graph keeps the bytes with it.
#pragma once

#include "cuda/platform.cuh"

namespace lightning_mp::cuda {

constexpr int kUploadThreads = 256;

// Arguments of a kernel may have 4 KiB, and nearly 32 KiB from CUDA 12.1 on.
#if defined(CUDART_VERSION) && CUDART_VERSION >= 12010
constexpr int kUploadWords = 3968;
#else
constexpr int kUploadWords = 480;
#endif

struct UploadBlock {
  uint64_t words[kUploadWords];
};

static __global__ void __launch_bounds__(kUploadThreads)
    upload_kernel(UploadBlock block, int num_words, uint64_t* target) {
  for (int i = static_cast<int>(threadIdx.x); i < num_words; i += static_cast<int>(blockDim.x)) {
    target[i] = block.words[i];
  }
}

}  // namespace lightning_mp::cuda
