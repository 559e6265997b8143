// Neighbouring elements that one thread reads or writes at once: memory is as fast as it can be
// only where a thread moves 16 bytes, and has several such reads under way. For kernels.
#ifndef CADRE_WORKER_RUNTIME_CUDA_VECTOR_H_
#define CADRE_WORKER_RUNTIME_CUDA_VECTOR_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace cadre {
namespace cuda {

constexpr int kVectorBytes = 16;

template <typename T, int kElements>
struct alignas(sizeof(T) * kElements) Vector {
  T element[kElements];
};

template <typename V>
__host__ __device__ inline bool IsAlignedFor(const void* memory) {
  return reinterpret_cast<uintptr_t>(memory) % alignof(V) == 0;
}

}  // namespace cuda
}  // namespace cadre

#endif  // CADRE_WORKER_RUNTIME_CUDA_VECTOR_H_
