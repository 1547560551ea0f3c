// What a caller asks of a step: plain data, the same for all rows.
#pragma once

#include <stdint.h>

namespace lightning_mp {

// Names and meanings are those of torch.optim.Adam and AdamW.
struct AdamParameters {
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
  // The decay is AdamW's, not a term of the gradient.
  bool is_decoupled;
  bool maximize;
  // Bound of each gradient element after its factor; infinity for none.
  float clip_value;
  // Of the roundings of bfloat16 moments.
  uint64_t seed;
};

// Names and meanings are those of torch.optim.SGD.
struct SgdParameters {
  double momentum;
  double dampening;
  double weight_decay;
  bool nesterov;
  bool maximize;
  // The momentum buffers hold nothing yet.
  bool is_first;
  float clip_value;
};

// How a step treats memory; nothing here changes what is computed for a clean input.
struct StepOptions {
  bool zero_gradients;
  // Where the half copy is not the rounding of its FP32 weight, somebody wrote the copy: the weight
  // takes that value before the step.
  bool adopt;
};

// Names and meanings are those of GradScaler; the hysteresis is Apex's.
struct ScaleParameters {
  float growth_factor;
  float backoff_factor;
  int growth_interval;
  int hysteresis;
  float min_scale;
  float max_scale;
};

}  // namespace lightning_mp
