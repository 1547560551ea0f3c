// How code that runs on hosts and on devices is declared.
#pragma once

// Everything marked so is always inlined. That is more than speed: a file of kernels is compiled
// once per instruction set, and an inline function that the compiler chose not to inline could be
// merged with its namesake of a richer instruction set, which other machines cannot run.
#if defined(__CUDACC__)
#define HOST_DEVICE __host__ __device__ __forceinline__
#else
#define HOST_DEVICE inline __attribute__((always_inline))
#endif
