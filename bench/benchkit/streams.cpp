// The streams of memory that a step cannot do without, with next to no arithmetic: what they take
// is the least that a step can take on this machine.
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

// Half weights of a group fill a line of a cache.
constexpr int kGroup = 32;

float from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

uint32_t to_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

float widened(uint16_t half) { return from_bits(static_cast<uint32_t>(half) << 16); }

uint16_t narrowed(float value) { return static_cast<uint16_t>(to_bits(value) >> 16); }

// Past the caches where the machine can: nothing is read before the line is written.
void write_line(const uint16_t* line, uint16_t* target) {
#if defined(__x86_64__)
  for (int i = 0; i < kGroup; i += 8) {
    const __m128i part = _mm_loadu_si128(reinterpret_cast<const __m128i*>(line + i));
    _mm_stream_si128(reinterpret_cast<__m128i*>(target + i), part);
  }
#else
  memcpy(target, line, kGroup * sizeof(*line));
#endif
}

template <class State>
void count_up(State* states, int64_t from) {
  for (int64_t i = from; i < from + kGroup; ++i) states[i] += State{1};
}

}  // namespace

// All ranges begin and end at multiples of 64 elements, all pointers at lines of a cache.

extern "C" uint64_t read_stream(const uint16_t* gradients, int64_t begin, int64_t end) {
  uint64_t sum = 0;
  for (int64_t i = begin; i < end; i += 4) {
    uint64_t word;
    memcpy(&word, gradients + i, sizeof(word));
    sum += word;
  }
  return sum;
}

extern "C" void copied_stream(const uint16_t* __restrict gradients, float* __restrict weights,
                              float* __restrict means, float* __restrict squares,
                              uint16_t* __restrict copies, int64_t begin, int64_t end) {
  for (int64_t from = begin; from < end; from += kGroup) {
    alignas(64) uint16_t line[kGroup];
    for (int i = 0; i < kGroup; ++i) {
      const float weight = 0.5f * (weights[from + i] + widened(gradients[from + i]));
      weights[from + i] = weight;
      line[i] = narrowed(weight);
    }
    count_up(means, from);
    count_up(squares, from);
    write_line(line, copies + from);
  }
}

extern "C" void adopted_stream(const uint16_t* __restrict gradients, float* __restrict weights,
                               float* __restrict means, float* __restrict squares,
                               uint16_t* __restrict copies, int64_t begin, int64_t end) {
  for (int64_t from = begin; from < end; from += kGroup) {
    for (int64_t i = from; i < from + kGroup; ++i) {
      const float weight = 0.25f * (weights[i] + widened(copies[i]) + widened(gradients[i]));
      weights[i] = weight;
      copies[i] = narrowed(weight);
    }
    count_up(means, from);
    count_up(squares, from);
  }
}

namespace {

template <class State>
void split_stream_of(const uint16_t* __restrict gradients, uint16_t* __restrict remainders,
                     State* __restrict means, State* __restrict squares,
                     uint16_t* __restrict copies, int64_t begin, int64_t end) {
  for (int64_t from = begin; from < end; from += kGroup) {
    for (int64_t i = from; i < from + kGroup; ++i) {
      const uint32_t bits = static_cast<uint32_t>(copies[i]) << 16 | remainders[i];
      const float weight = 0.5f * (from_bits(bits) + widened(gradients[i]));
      copies[i] = narrowed(weight);
      remainders[i] = static_cast<uint16_t>(to_bits(weight));
    }
    count_up(means, from);
    count_up(squares, from);
  }
}

}  // namespace

extern "C" void split_stream(const uint16_t* gradients, uint16_t* remainders, float* means,
                             float* squares, uint16_t* copies, int64_t begin, int64_t end) {
  split_stream_of(gradients, remainders, means, squares, copies, begin, end);
}

extern "C" void rounded_stream(const uint16_t* gradients, uint16_t* remainders, uint16_t* means,
                               uint16_t* squares, uint16_t* copies, int64_t begin, int64_t end) {
  split_stream_of(gradients, remainders, means, squares, copies, begin, end);
}
