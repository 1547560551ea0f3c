#include "cpu/norm.h"

#include <algorithm>

#include "cpu/kernels.h"
#include "functors/norm.h"

namespace lightning_mp::cpu {

SumsOfSquares sums_of_squares(const RowTable& table, int role, FoundInf found_inf, Isa isa,
                              const ParallelFor& parallel_for) {
  const Kernels& kernels = kernels_of(isa);
  // Number of chunks before each row.
  std::vector<int64_t> first_chunks;
  int64_t num_chunks = 0;
  for (const TensorRow& row : table.rows) {
    first_chunks.push_back(num_chunks);
    num_chunks += (row.numel + kNormChunk - 1) / kNormChunk;
  }
  std::vector<double> partials(num_chunks);
  // Small rows have a chunk each: a thread should get more than one of them.
  const int64_t grain = std::max<int64_t>(1, num_chunks * kWalkGrain / (table.numel + 1));
  parallel_for(num_chunks, grain, [&](int64_t from, int64_t to) {
    size_t i =
        std::upper_bound(first_chunks.begin(), first_chunks.end(), from) - first_chunks.begin() - 1;
    for (int64_t chunk = from; chunk < to; ++chunk) {
      while (i + 1 < first_chunks.size() && first_chunks[i + 1] <= chunk) ++i;
      const int64_t begin = (chunk - first_chunks[i]) * kNormChunk;
      const int64_t end = std::min(begin + kNormChunk, table.rows[i].numel);
      bool has_inf = false;
      partials[chunk] = kernels.sum_of_squares(table.rows[i], role, begin, end, &has_inf);
      float* const flag = found_inf.of(i);
      if (has_inf && flag != nullptr) set_flag(flag);
    }
  });
  SumsOfSquares sums;
  sums.total = sum_partials(partials.data(), num_chunks);
  for (size_t i = 0; i < first_chunks.size(); ++i) {
    const int64_t end = i + 1 < first_chunks.size() ? first_chunks[i + 1] : num_chunks;
    sums.each.push_back(sum_partials(partials.data() + first_chunks[i], end - first_chunks[i]));
  }
  return sums;
}

}  // namespace lightning_mp::cpu
