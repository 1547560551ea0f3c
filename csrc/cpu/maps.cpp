#include "cpu/maps.h"

#include <atomic>

#include "cpu/kernels.h"

namespace lightning_mp::cpu {

bool scale_copy(const RowTable& table, float scale, Isa isa, const ParallelFor& parallel_for) {
  const Kernels& kernels = kernels_of(isa);
  std::atomic<bool> is_finite{true};
  walk(table, parallel_for, [&](size_t i, int64_t begin, int64_t end) {
    if (!kernels.scale_copy(table.rows[i], begin, end, scale)) is_finite = false;
  });
  return is_finite;
}

bool axpby(const RowTable& table, float a, float b, Isa isa, const ParallelFor& parallel_for) {
  const Kernels& kernels = kernels_of(isa);
  std::atomic<bool> is_finite{true};
  walk(table, parallel_for, [&](size_t i, int64_t begin, int64_t end) {
    if (!kernels.axpby(table.rows[i], begin, end, a, b)) is_finite = false;
  });
  return is_finite;
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
