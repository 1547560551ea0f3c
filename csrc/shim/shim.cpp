#include "shim/shim.h"

#include <cuda_runtime.h>
#include <ucontext.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

ShimIndex threadIdx;
ShimIndex blockIdx;
ShimIndex blockDim;
ShimIndex gridDim;

namespace lightning_mp::shim {
namespace {

constexpr size_t kStackBytes = 64 << 10;

enum Order { kForward = 0, kBackward = 1, kShuffled = 2 };

struct Settings {
  int order = kForward;
  unsigned max_grid = 0;
  unsigned first_block = 0;
  bool is_capturing = false;
  std::mt19937 random;
  std::string launches;
};

Settings settings;

std::vector<unsigned> ordered(unsigned count) {
  std::vector<unsigned> result(count);
  std::iota(result.begin(), result.end(), 0u);
  if (settings.order == kBackward) std::reverse(result.begin(), result.end());
  if (settings.order == kShuffled) std::shuffle(result.begin(), result.end(), settings.random);
  return result;
}

struct Fiber {
  ucontext_t context;
  // Not zeroed: pages that nobody touches cost nothing.
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
  int num_barriers;
  bool is_done;
};

// The block that runs, for fibers, which get no arguments.
struct Block {
  const std::function<void()>& body;
  std::vector<Fiber>& fibers;
  ucontext_t scheduler;
  unsigned current = 0;
};

Block* running = nullptr;

void back_to_scheduler() {
  swapcontext(&running->fibers[running->current].context, &running->scheduler);
}

void run_fiber() {
  running->body();
  running->fibers[running->current].is_done = true;
  back_to_scheduler();
}

void start_fibers(Block& block) {
  for (Fiber& fiber : block.fibers) {
    fiber.num_barriers = 0;
    fiber.is_done = false;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, run_fiber, 0);
  }
}

// Runs each thread up to its next barrier, or its end. True if one has more to do.
bool run_to_barriers(Block& block) {
  bool is_unfinished = false;
  for (const unsigned thread : ordered(block.fibers.size())) {
    if (block.fibers[thread].is_done) continue;
    block.current = thread;
    threadIdx.x = thread;
    swapcontext(&block.scheduler, &block.fibers[thread].context);
    is_unfinished |= !block.fibers[thread].is_done;
  }
  return is_unfinished;
}

bool agree(const Block& block) {
  return std::all_of(block.fibers.begin(), block.fibers.end(), [&](const Fiber& fiber) {
    return fiber.num_barriers == block.fibers[0].num_barriers &&
           fiber.is_done == block.fibers[0].is_done;
  });
}

}  // namespace

void launch(const char* kernel, unsigned grid, unsigned threads,
            const std::function<void()>& body) {
  settings.launches += std::string(kernel) + "\n";
  if (settings.max_grid > 0) grid = std::min(grid, settings.max_grid);
  // Kept from launch to launch, of the same number of threads.
  static std::map<unsigned, std::vector<Fiber>> fibers;
  Block block = {body, fibers.try_emplace(threads, threads).first->second, {}};
  running = &block;
  gridDim.x = grid;
  blockDim.x = threads;
  for (const unsigned index : ordered(grid)) {
    if (index < settings.first_block && grid > 1) continue;
    blockIdx.x = index;
    start_fibers(block);
    while (run_to_barriers(block)) {
      if (agree(block)) continue;
      throw std::runtime_error(std::string("threads of a block of ") + kernel +
                               " disagree about a barrier");
    }
  }
  running = nullptr;
}

void barrier() {
  ++running->fibers[running->current].num_barriers;
  back_to_scheduler();
}

}  // namespace lightning_mp::shim

using lightning_mp::shim::settings;

void __syncthreads() { lightning_mp::shim::barrier(); }

cudaError_t cudaSetDevice(int) { return cudaSuccess; }

cudaError_t cudaGetLastError() { return cudaSuccess; }

const char* cudaGetErrorString(cudaError_t) { return "no error"; }

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = settings.is_capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

void shim_set_order(int order, unsigned seed) {
  settings.order = order;
  settings.random.seed(seed);
}

void shim_set_max_grid(unsigned max_grid) { settings.max_grid = max_grid; }

void shim_set_first_block(unsigned first_block) { settings.first_block = first_block; }

void shim_set_capturing(int is_capturing) { settings.is_capturing = is_capturing != 0; }

const char* shim_launches() { return settings.launches.c_str(); }

void shim_reset() { settings.launches.clear(); }
