// Where an operation notes tensors with an element that is infinite or NaN.
#pragma once

#include <stdint.h>

#include "common/macros.h"

namespace lightning_mp {

// One flag for all rows, or one for each. Set to 1, never cleared.
struct FoundInf {
  // Null if nobody asks.
  float* flags = nullptr;
  // From the flag of a row to that of the next: 0 or 1.
  int64_t stride = 0;

  HOST_DEVICE float* of(int64_t row) const {
    return flags == nullptr ? nullptr : flags + row * stride;
  }
};

}  // namespace lightning_mp
