// The kernels as host functions, for callers that know nothing of CUDA. All put their work on a
// stream and return at once; pointers are to device memory. The result is 0 or a cudaError_t.
#pragma once

#include <stdint.h>

#include "common/cross_entropy.h"
#include "common/found_inf.h"
#include "common/parameters.h"
#include "cuda/device_table.h"
#include "functors/adam.h"

namespace lightning_mp::cuda {

// A cudaStream_t.
using StreamHandle = void*;

const char* error_text(int error);

// Makes a device the current one of this library's own CUDA runtime, which is not torch's.
int use_device(int32_t index);

// Copies from host to device; the host memory may be freed at once.
int upload(const uint64_t* words, int64_t num_words, uint64_t* target, StreamHandle stream);

// Whether a graph is being captured: what it reads must live as long as it does.
int is_capturing(StreamHandle stream, bool* result);

// Sums of chunks of kNormChunk elements.
int sum_of_squares(const DeviceTable& table, int role, double* partials, FoundInf found_inf,
                   StreamHandle stream);

struct NormRequest {
  const float* inv_scale;  // null for 1
  bool has_max_norm;
  float max_norm;
};

int gradient_stats(const double* partials, int64_t num_partials, const NormRequest& request,
                   float* norm, float* factor, StreamHandle stream);

// `each` may be null.
int norms(const DeviceTable& table, const double* partials, float* total, float* each,
          StreamHandle stream);

// What steps read on the device; each may be null.
struct StepScalars {
  const float* factor;
  const float* found_inf;
  const float* lr_tensor;  // in place of lr
  double lr;
};

// Counts steps and fills `scalars`, one per row, for adam_step().
int prepare_adam(float* const* steps, int64_t num_rows, const AdamParameters& parameters,
                 const StepScalars& inputs, AdamScalars* scalars, StreamHandle stream);

int adam_step(const DeviceTable& table, const AdamScalars* scalars, bool is_decoupled,
              const float* found_inf, StepOptions options, StreamHandle stream);

// The same for bfloat16 moments.
int rounded_adam_step(const DeviceTable& table, const AdamScalars* scalars, bool is_decoupled,
                      const float* found_inf, StepOptions options, StreamHandle stream);

int sgd_step(const DeviceTable& table, const SgdParameters& parameters, const StepScalars& inputs,
             StepOptions options, StreamHandle stream);

int scale_copy(const DeviceTable& table, const float* scale, FoundInf found_inf,
               StreamHandle stream);

int axpby(const DeviceTable& table, float a, float b, FoundInf found_inf, StreamHandle stream);

int split(const DeviceTable& table, StreamHandle stream);

int join(const DeviceTable& table, StreamHandle stream);

struct ScaleTensors {
  float* scale;
  int32_t* growth_tracker;
  int32_t* hysteresis_tracker;
  const float* found_inf;
};

int update_scale(const ScaleTensors& tensors, const ScaleParameters& parameters,
                 StreamHandle stream);

// Writes loss and statistics of each row of half logits.
int cross_entropy_forward(const CrossEntropyInputs& inputs, float* losses,
                          RowStatistics* statistics, StreamHandle stream);

// Writes the gradients of the logits, rows one after the other, from those of the losses.
int cross_entropy_backward(const CrossEntropyInputs& inputs, const RowStatistics* statistics,
                           const float* gradients, void* results, StreamHandle stream);

}  // namespace lightning_mp::cuda
