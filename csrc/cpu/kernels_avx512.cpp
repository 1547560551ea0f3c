#if defined(__x86_64__)
#include <stdint.h>

#include "cpu/kernels.h"
#include "cpu/simd_avx512.h"
#include "cpu/words_avx512.h"
#include "functors/cross_entropy.h"
#include "functors/norm.h"
#include "functors/split_master.h"

namespace lightning_mp::cpu::avx512 {

#include "cpu/kernels.inc"

}  // namespace lightning_mp::cpu::avx512
#endif
