// Stands in for CUDA's own header of this name when the sources of csrc/cuda are compiled for the
// CPU, for tests. Every thread of a block is a fiber that runs up to its next barrier; blocks run
// one after another. csrc/shim/README.md says what that shows and what it cannot.
#pragma once

#include <functional>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
// Blocks do not overlap, so that one copy serves all of them.
#define __shared__ static

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

struct ShimIndex {
  unsigned x;
};

extern ShimIndex threadIdx;
extern ShimIndex blockIdx;
extern ShimIndex blockDim;
extern ShimIndex gridDim;

void __syncthreads();

namespace lightning_mp::shim {

// Runs all threads of a grid and returns. Throws std::runtime_error if threads of a block disagree
// about a barrier.
void launch(const char* kernel, unsigned grid, unsigned threads, const std::function<void()>& body);

}  // namespace lightning_mp::shim

// Arguments are copied, as a launch on a device does.
#define LAUNCH(kernel, grid, threads, stream, ...)                               \
  (static_cast<void>(stream),                                                    \
   ::lightning_mp::shim::launch(#kernel, static_cast<unsigned>(grid), (threads), \
                                [=] { kernel(__VA_ARGS__); }))

using cudaStream_t = struct ShimStream*;

enum cudaError_t { cudaSuccess = 0 };

enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone = 0, cudaStreamCaptureStatusActive = 1 };

cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetLastError();
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status);
