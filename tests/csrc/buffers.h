// Memory of exact size for kernels on the CPU, and what is in it.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "common/found_inf.h"
#include "common/row_table.h"
#include "functors/half.h"

namespace lightning_mp {

// As many bytes as asked for, at an address that is `shift` elements past an aligned one.
struct Buffer {
  std::unique_ptr<unsigned char[]> bytes;
  unsigned char* data;
  size_t size;

  Buffer(size_t num_bytes, size_t shift)
      : bytes(new unsigned char[num_bytes + shift]), data(bytes.get() + shift), size(num_bytes) {}

  bool equals(const Buffer& other) const { return std::memcmp(data, other.data, size) == 0; }
};

inline void store(DType dtype, unsigned char* to, float value) {
  if (dtype == DType::kBFloat16) {
    const BFloat16 half = round_to_bfloat16(value);
    std::memcpy(to, &half, 2);
  } else if (dtype == DType::kFloat16) {
    const Float16 half = round_to_float16(value);
    std::memcpy(to, &half, 2);
  } else {
    std::memcpy(to, &value, 4);
  }
}

inline float load(DType dtype, const unsigned char* from) {
  if (dtype == DType::kBFloat16) {
    BFloat16 half;
    std::memcpy(&half, from, 2);
    return to_float(half);
  }
  if (dtype == DType::kFloat16) {
    Float16 half;
    std::memcpy(&half, from, 2);
    return to_float(half);
  }
  float value;
  std::memcpy(&value, from, 4);
  return value;
}

// A flag for each row.
class Flags {
 public:
  explicit Flags(const RowTable& table) : values_(table.rows.size(), 0.0f) {}

  FoundInf found_inf() { return {values_.data(), 1}; }

  std::vector<size_t> set() const {
    std::vector<size_t> rows;
    for (size_t i = 0; i < values_.size(); ++i) {
      if (values_[i] != 0.0f) rows.push_back(i);
    }
    return rows;
  }

 private:
  std::vector<float> values_;
};

}  // namespace lightning_mp
