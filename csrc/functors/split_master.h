// An FP32 master as the bf16 weight that the model uses and the 16 bits that are left.
//
// The weight is the master's upper half, rounded half away from zero; the remainder, its lower
// half, says by its highest bit whether the weight was rounded up. Both together are the master
// exactly. Only at exact ties between two bf16 values with an even lower one (32,640 of 2^32 bit
// patterns) is the weight another than rounding to nearest even gives: even weights would have to
// stand for 65,537 masters each, one more than 16 bits tell apart.
#pragma once

#include <stdint.h>

#include "common/macros.h"
#include "functors/half.h"

namespace lightning_mp {

struct SplitMaster {
  BFloat16 half;
  uint16_t remainder;
};

HOST_DEVICE SplitMaster split_master(float master) {
  uint32_t bits = bits_of(master);
  // Rounding up could carry the payload of a NaN into sign and exponent.
  if (is_nan_bits(bits)) bits = 0x7FC00000u;
  const uint32_t half = (bits >> 16) + ((bits >> 15) & 1u);
  return SplitMaster{BFloat16{static_cast<uint16_t>(half)}, static_cast<uint16_t>(bits)};
}

HOST_DEVICE float join_master(BFloat16 half, uint16_t remainder) {
  const uint32_t upper = static_cast<uint32_t>(half.bits) - (remainder >> 15);
  return float_of_bits((upper << 16) | remainder);
}

}  // namespace lightning_mp
