#include "cpu/maps.h"

#include "cpu/kernels.h"

namespace lightning_mp::cpu {

void scale_copy(const RowTable& table, float scale, FoundInf found_inf, Isa isa,
                const ParallelFor& parallel_for) {
  const Kernels& kernels = kernels_of(isa);
  walk(table, parallel_for, [&](size_t i, int64_t begin, int64_t end) {
    if (!kernels.scale_copy(table.rows[i], begin, end, scale)) set_flag(found_inf.of(i));
  });
}

void axpby(const RowTable& table, float a, float b, FoundInf found_inf, Isa isa,
           const ParallelFor& parallel_for) {
  const Kernels& kernels = kernels_of(isa);
  walk(table, parallel_for, [&](size_t i, int64_t begin, int64_t end) {
    if (!kernels.axpby(table.rows[i], begin, end, a, b)) set_flag(found_inf.of(i));
  });
}

void split(const RowTable& table, Isa isa, const ParallelFor& parallel_for) {
  const Kernels& kernels = kernels_of(isa);
  walk(table, parallel_for,
       [&](size_t i, int64_t begin, int64_t end) { kernels.split(table.rows[i], begin, end); });
}

void join(const RowTable& table, Isa isa, const ParallelFor& parallel_for) {
  const Kernels& kernels = kernels_of(isa);
  walk(table, parallel_for,
       [&](size_t i, int64_t begin, int64_t end) { kernels.join(table.rows[i], begin, end); });
}

}  // namespace lightning_mp::cpu
