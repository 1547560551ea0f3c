#if defined(__x86_64__)
#include <stdint.h>

#include "cpu/kernels.h"
#include "cpu/simd_avx2.h"
#include "cpu/words_avx2.h"
#include "functors/cross_entropy.h"
#include "functors/norm.h"
#include "functors/split_master.h"

namespace lightning_mp::cpu::avx2 {

#include "cpu/kernels.inc"

}  // namespace lightning_mp::cpu::avx2
#endif
