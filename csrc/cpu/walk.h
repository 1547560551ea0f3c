// Spreads work over threads.
#pragma once

#include <stdint.h>

#include <algorithm>
#include <functional>

#include "common/row_table.h"

namespace lightning_mp::cpu {

// Calls body(begin, end) for ranges that together are [0, count), maybe in several threads, none of
// which gets less than `grain` unless there is no more.
using ParallelFor = std::function<void(int64_t count, int64_t grain,
                                       const std::function<void(int64_t, int64_t)>& body)>;

// Elements that are worth a thread, and the unit in which they are shared out.
constexpr int64_t kWalkUnit = 1024;
constexpr int64_t kWalkGrain = 16 * kWalkUnit;

// Calls body(row index, begin, end) for pieces that together are all elements of all rows. The
// shares of threads are equal in elements, whatever the rows' sizes.
template <class Body>
void walk(const RowTable& table, const ParallelFor& parallel_for, const Body& body) {
  const auto& rows = table.rows;
  const int64_t num_units = (table.numel + kWalkUnit - 1) / kWalkUnit;
  parallel_for(num_units, kWalkGrain / kWalkUnit, [&](int64_t first_unit, int64_t last_unit) {
    const int64_t from = first_unit * kWalkUnit;
    const int64_t to = std::min(last_unit * kWalkUnit, table.numel);
    const auto after =
        std::upper_bound(rows.begin(), rows.end(), from,
                         [](int64_t element, const TensorRow& row) { return element < row.first; });
    for (size_t i = after - rows.begin() - 1; i < rows.size() && rows[i].first < to; ++i) {
      const int64_t begin = std::max<int64_t>(from - rows[i].first, 0);
      const int64_t end = std::min(to - rows[i].first, rows[i].numel);
      if (begin < end) body(i, begin, end);
    }
  });
}

// Sets a flag that other threads may set too.
inline void set_flag(float* flag) {
  const float one = 1.0f;
  __atomic_store(flag, &one, __ATOMIC_RELAXED);
}

}  // namespace lightning_mp::cpu
