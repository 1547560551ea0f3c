// What the kernels are written in: CUDA C++ and nothing else. Compiled by a host compiler with
// csrc/shim before all other include folders, the same files run on the CPU.
#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

#if defined(__CUDACC__)
#define LAUNCH(kernel, grid, threads, stream, ...) \
  kernel<<<static_cast<unsigned>(grid), threads, 0, stream>>>(__VA_ARGS__)
#endif

// A pointer that is read from a table in memory has no address space; told that it is global, the
// compiler uses the instructions for global memory, which are fewer and may be 16 bytes wide.
#if defined(__CUDA_ARCH__)
#define ASSUME_GLOBAL(pointer) __builtin_assume(__isGlobal(pointer))
#else
#define ASSUME_GLOBAL(pointer) static_cast<void>(0)
#endif

// Ends the kernel, and with it the use of the device by this process.
#if defined(__CUDA_ARCH__)
#define TRAP() __trap()
#else
#define TRAP() __builtin_trap()
#endif
