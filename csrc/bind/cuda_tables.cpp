#include "bind/cuda_tables.h"

#include <string.h>

#include <list>
#include <mutex>

namespace lightning_mp::bind {
namespace {

using Words = std::vector<uint64_t>;

constexpr size_t kRowWords = sizeof(TensorRow) / sizeof(uint64_t);
static_assert(sizeof(TensorRow) % sizeof(uint64_t) == 0);
// Tables of a few optimizers with a few groups of parameters each, for both passes.
constexpr size_t kKeptTables = 32;

// Padding would be part of the comparison, so it has to be the same.
TensorRow without_padding(const TensorRow& row) {
  TensorRow result;
  memset(static_cast<void*>(&result), 0, sizeof(result));
  for (int role = 0; role < kMaxTensors; ++role) {
    result.tensors[role] = row.tensors[role];
    result.dtypes[role] = row.dtypes[role];
  }
  result.numel = row.numel;
  result.first = row.first;
  return result;
}

// Rows, then the chunks before each of them, then its counter.
Words words_of(const RowTable& rows, int64_t chunk_size, const std::vector<float*>& steps,
               int64_t& num_chunks) {
  const size_t num_rows = rows.rows.size();
  Words words((kRowWords + 1) * num_rows + steps.size());
  num_chunks = 0;
  for (size_t i = 0; i < num_rows; ++i) {
    const TensorRow row = without_padding(rows.rows[i]);
    memcpy(&words[kRowWords * i], &row, sizeof(row));
    words[kRowWords * num_rows + i] = static_cast<uint64_t>(num_chunks);
    num_chunks += (row.numel + chunk_size - 1) / chunk_size;
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    words[(kRowWords + 1) * num_rows + i] = reinterpret_cast<uint64_t>(steps[i]);
  }
  return words;
}

Tensor upload_words(const Words& words, const CudaCall& call) {
  const int64_t numel = static_cast<int64_t>(words.size());
  Tensor memory = call.allocate(numel, torch::headeronly::ScalarType::Long);
  call.check(cuda::upload(words.data(), numel, static_cast<uint64_t*>(memory.mutable_data_ptr()),
                          call.stream()));
  return memory;
}

// Work of another stream would not wait for an upload, so a table belongs to its stream.
struct KeptTable {
  int32_t device_index;
  cuda::StreamHandle stream;
  Words words;
  Tensor memory;
};

class KeptTables {
 public:
  Tensor find_or_upload(Words words, const CudaCall& call) {
    const std::lock_guard<std::mutex> guard(mutex_);
    for (auto kept = tables_.begin(); kept != tables_.end(); ++kept) {
      if (kept->device_index != call.device_index() || kept->stream != call.stream() ||
          kept->words != words) {
        continue;
      }
      // To the front: what was not used for longest is dropped first.
      tables_.splice(tables_.begin(), tables_, kept);
      return kept->memory;
    }
    const Tensor memory = upload_words(words, call);
    tables_.push_front({call.device_index(), call.stream(), std::move(words), memory});
    if (tables_.size() > kKeptTables) tables_.pop_back();
    return memory;
  }

 private:
  std::mutex mutex_;
  std::list<KeptTable> tables_;
};

Tensor memory_of(Words words, const CudaCall& call) {
  bool is_capturing = false;
  call.check(cuda::is_capturing(call.stream(), &is_capturing));
  if (is_capturing) return upload_words(words, call);
  // Never destroyed: at exit the device may be gone before us.
  static auto* const tables = new KeptTables();
  return tables->find_or_upload(std::move(words), call);
}

}  // namespace

UploadedTable upload_rows(const RowTable& rows, int64_t chunk_size,
                          const std::vector<float*>& steps, const CudaCall& call) {
  int64_t num_chunks = 0;
  Words words = words_of(rows, chunk_size, steps, num_chunks);
  const size_t num_rows = rows.rows.size();
  const Tensor memory = memory_of(std::move(words), call);
  const auto* start = static_cast<uint64_t*>(memory.mutable_data_ptr());
  const auto* first_chunks = reinterpret_cast<const int64_t*>(start + kRowWords * num_rows);
  return {memory,
          {reinterpret_cast<const TensorRow*>(start), first_chunks, static_cast<int64_t>(num_rows),
           num_chunks},
          reinterpret_cast<float* const*>(first_chunks + num_rows)};
}

}  // namespace lightning_mp::bind
