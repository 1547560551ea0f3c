#include <stdint.h>

#include "cpu/kernels.h"
#include "cpu/simd_base.h"
#include "functors/norm.h"

namespace lightning_mp::cpu::base {

#include "cpu/kernels.inc"

}  // namespace lightning_mp::cpu::base
