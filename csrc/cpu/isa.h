// Which instruction set the kernels use on this machine.
#pragma once

namespace lightning_mp::cpu {

enum class Isa { kBase = 0, kAvx2 = 1, kAvx512 = 2 };

// The best that this machine and this build have. LIGHTNING_MP_ISA=base|avx2|avx512 lowers it, read
// once per process; another value throws std::runtime_error.
Isa active_isa();

// As in LIGHTNING_MP_ISA.
const char* isa_name(Isa isa);

}  // namespace lightning_mp::cpu
