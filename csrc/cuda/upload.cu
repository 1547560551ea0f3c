#include "cuda/upload.cuh"

#include "cuda/launch.cuh"

namespace lightning_mp::cuda {

const char* error_text(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

int use_device(int32_t index) { return static_cast<int>(cudaSetDevice(index)); }

int upload(const uint64_t* words, int64_t num_words, uint64_t* target, StreamHandle stream) {
  for (int64_t begin = 0; begin < num_words; begin += kUploadWords) {
    const int64_t left = num_words - begin;
    const int count = static_cast<int>(left < kUploadWords ? left : kUploadWords);
    UploadBlock block;
    __builtin_memcpy(block.words, words + begin, count * sizeof(uint64_t));
    LAUNCH(upload_kernel, 1, kUploadThreads, stream_of(stream), block, count, target + begin);
    const int error = last_error();
    if (error != 0) return error;
  }
  return 0;
}

int is_capturing(StreamHandle stream, bool* result) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t error = cudaStreamIsCapturing(stream_of(stream), &status);
  *result = status != cudaStreamCaptureStatusNone;
  return static_cast<int>(error);
}

}  // namespace lightning_mp::cuda
