#include <stdint.h>

#include "cpu/kernels.h"
#include "cpu/simd_base.h"
#include "cpu/words_base.h"
#include "functors/cross_entropy.h"
#include "functors/norm.h"
#include "functors/split_master.h"

namespace lightning_mp::cpu::base {

#include "cpu/kernels.inc"

}  // namespace lightning_mp::cpu::base
