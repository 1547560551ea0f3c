// Eight neighbouring elements: 16 bytes of a type of two bytes, twice as many of FP32.
#pragma once

#include "common/dtype.h"
#include "cuda/platform.cuh"
#include "functors/half.h"

namespace lightning_mp::cuda {

// Elements that a thread handles at once.
constexpr int kWidth = 8;

// What one instruction loads or stores.
struct alignas(16) Line {
  uint32_t words[4];
};

HOST_DEVICE Line load_line(const Line* from) {
  const uint4 line = *reinterpret_cast<const uint4*>(from);
  return Line{{line.x, line.y, line.z, line.w}};
}

// Global memory only. Written out, as the compiler does not always make one instruction of four
// words that it computed.
HOST_DEVICE void store_line(const Line& line, Line* to) {
#if defined(__CUDA_ARCH__)
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(__cvta_generic_to_global(to)), "r"(line.words[0]), "r"(line.words[1]),
                 "r"(line.words[2]), "r"(line.words[3])
               : "memory");
#else
  *to = line;
#endif
}

HOST_DEVICE bool is_aligned(const void* pointer) {
  return (reinterpret_cast<uintptr_t>(pointer) & (sizeof(Line) - 1)) == 0;
}

// The bits of an element, in the low half of a word if it has two bytes.
HOST_DEVICE uint32_t word_of(float value) { return bits_of(value); }

HOST_DEVICE uint32_t word_of(BFloat16 value) { return value.bits; }

HOST_DEVICE uint32_t word_of(Float16 value) { return value.bits; }

HOST_DEVICE uint32_t word_of(uint16_t value) { return value; }

HOST_DEVICE void set_word(float& value, uint32_t word) { value = float_of_bits(word); }

HOST_DEVICE void set_word(BFloat16& value, uint32_t word) {
  value.bits = static_cast<uint16_t>(word);
}

HOST_DEVICE void set_word(Float16& value, uint32_t word) {
  value.bits = static_cast<uint16_t>(word);
}

HOST_DEVICE void set_word(uint16_t& value, uint32_t word) { value = static_cast<uint16_t>(word); }

// Indices have to be constants after unrolling: registers have no addresses.
template <class T>
struct Pack {
  static constexpr int kLines = static_cast<int>(sizeof(T)) * kWidth / 16;

  Line lines[kLines];

  HOST_DEVICE T get(int k) const {
    T value;
    if constexpr (sizeof(T) == 4) {
      set_word(value, lines[k / 4].words[k % 4]);
    } else {
      set_word(value, (lines[0].words[k / 2] >> (k % 2 * 16)) & 0xFFFFu);
    }
    return value;
  }

  HOST_DEVICE void set(int k, T value) {
    if constexpr (sizeof(T) == 4) {
      lines[k / 4].words[k % 4] = word_of(value);
    } else {
      uint32_t& word = lines[0].words[k / 2];
      word =
          k % 2 ? (word & 0xFFFFu) | (word_of(value) << 16) : (word & 0xFFFF0000u) | word_of(value);
    }
  }

  HOST_DEVICE void clear() {
#pragma unroll
    for (int k = 0; k < kWidth; ++k) set(k, T{});
  }
};

template <class T>
HOST_DEVICE Pack<T> load_pack(const T* from) {
  ASSUME_GLOBAL(from);
  Pack<T> pack;
#pragma unroll
  for (int k = 0; k < Pack<T>::kLines; ++k) {
    pack.lines[k] = load_line(reinterpret_cast<const Line*>(from) + k);
  }
  return pack;
}

template <class T>
HOST_DEVICE void store_pack(const Pack<T>& pack, T* to) {
#pragma unroll
  for (int k = 0; k < Pack<T>::kLines; ++k) {
    store_line(pack.lines[k], reinterpret_cast<Line*>(to) + k);
  }
}

template <class T>
HOST_DEVICE T load_one(const T* from) {
  ASSUME_GLOBAL(from);
  return *from;
}

template <class T>
HOST_DEVICE void store_one(T value, T* to) {
  ASSUME_GLOBAL(to);
  *to = value;
}

// Elements from `offset` on of `count` elements at `from`; what is not there is 0.
template <class T>
HOST_DEVICE Pack<T> load_lanes(const T* from, int count, int offset, bool is_aligned_start) {
  if (is_aligned_start && offset + kWidth <= count) return load_pack(from + offset);
  Pack<T> pack;
  pack.clear();
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    if (offset + k < count) pack.set(k, load_one(from + offset + k));
  }
  return pack;
}

// Conversions by the instructions of the device; on hosts, functions with the same results for all
// that is not a NaN.
HOST_DEVICE float widen(float value) { return value; }

HOST_DEVICE float widen(BFloat16 value) { return to_float(value); }

HOST_DEVICE float widen(Float16 half) {
#if defined(__CUDA_ARCH__)
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half.bits));
  return value;
#else
  return to_float(half);
#endif
}

template <class T>
HOST_DEVICE T narrow(float value) {
#if defined(__CUDA_ARCH__)
  if constexpr (__is_same(T, Float16)) {
    Float16 half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half.bits) : "f"(value));
    return half;
  }
#endif
  return from_float<T>(value);
}

// Calls function(T{}) with the floating type that a dtype stands for.
template <class Function>
HOST_DEVICE void with_type(DType dtype, const Function& function) {
  if (dtype == DType::kFloat32) {
    function(float{});
  } else if (dtype == DType::kBFloat16) {
    function(BFloat16{});
  } else {
    function(Float16{});
  }
}

HOST_DEVICE float load_float(const void* tensor, DType dtype, int64_t index) {
  float value;
  with_type(dtype, [&](auto type) {
    value = widen(load_one(static_cast<const decltype(type)*>(tensor) + index));
  });
  return value;
}

HOST_DEVICE void store_float(float value, void* tensor, DType dtype, int64_t index) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    store_one(narrow<T>(value), static_cast<T*>(tensor) + index);
  });
}

}  // namespace lightning_mp::cuda
