// Finds the first element that is infinite or not a number. An exponent of ones says so in every
// type, so nothing is converted. Blocks without one touch no shared result.
#include <cuda_runtime.h>

#include "worker_runtime/cuda/launch.h"
#include "worker_runtime/cuda/vector.h"

namespace cadre {
namespace cuda {
namespace {

constexpr int kThreads = 256;
// Vectors that a thread has under way at a time.
constexpr int kUnroll = 4;
constexpr uint64_t kMaxBlocks = 1 << 20;

__device__ inline void Lower(uint64_t* first, uint64_t index) {
  atomicMin(reinterpret_cast<unsigned long long*>(first), static_cast<unsigned long long>(index));
}

// The vectors begin at `data`, which is aligned for them.
template <typename Bits>
__global__ void FirstInVectorsKernel(const Bits* data, uint64_t vectors, Bits exponent,
                                     uint64_t offset, uint64_t* first) {
  constexpr int kElements = kVectorBytes / sizeof(Bits);
  using V = Vector<Bits, kElements>;
  const V* const from = reinterpret_cast<const V*>(data);
  const uint64_t step = uint64_t{gridDim.x} * kThreads * kUnroll;
  for (uint64_t base = uint64_t{blockIdx.x} * kThreads * kUnroll + threadIdx.x; base < vectors;
       base += step) {
    V values[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const uint64_t index = base + uint64_t(u) * kThreads;
      values[u] = index < vectors ? from[index] : V{};
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        if ((values[u].element[e] & exponent) != exponent) continue;
        Lower(first, offset + (base + uint64_t(u) * kThreads) * kElements + e);
      }
    }
  }
}

template <typename Bits>
__global__ void FirstNonFiniteKernel(const Bits* data, uint64_t count, Bits exponent,
                                     uint64_t offset, uint64_t* first) {
  const uint64_t step = uint64_t{gridDim.x} * kThreads;
  for (uint64_t i = uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) {
    if ((data[i] & exponent) == exponent) return Lower(first, offset + i);
  }
}

unsigned BlocksFor(uint64_t count, uint64_t per_block) {
  const uint64_t blocks = (count + per_block - 1) / per_block;
  return static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks);
}

template <typename Bits>
int Launch(const void* memory, size_t count, Bits exponent, uint64_t offset, uint64_t* first,
           cudaStream_t stream) {
  constexpr int kElements = kVectorBytes / sizeof(Bits);
  const Bits* const data = static_cast<const Bits*>(memory);
  const uint64_t vectors =
      IsAlignedFor<Vector<Bits, kElements>>(memory) ? uint64_t{count} / kElements : 0;
  if (vectors > 0) {
    FirstInVectorsKernel<Bits><<<BlocksFor(vectors, kThreads * kUnroll), kThreads, 0, stream>>>(
        data, vectors, exponent, offset, first);
  }
  const uint64_t done = vectors * kElements;
  if (done < count) {
    FirstNonFiniteKernel<Bits><<<BlocksFor(count - done, kThreads), kThreads, 0, stream>>>(
        data + done, count - done, exponent, offset + done, first);
  }
  return cudaGetLastError();
}

}  // namespace

int LaunchFirstNonFinite(const void* data, Element type, size_t count, uint64_t offset,
                         uint64_t* first, void* stream) {
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  switch (type) {
    case Element::kFloat32:
      return Launch<uint32_t>(data, count, 0x7f800000u, offset, first, on);
    case Element::kFloat16:
      return Launch<uint16_t>(data, count, uint16_t{0x7c00}, offset, first, on);
    case Element::kBfloat16:
      return Launch<uint16_t>(data, count, uint16_t{0x7f80}, offset, first, on);
  }
  return cudaErrorInvalidValue;
}

}  // namespace cuda
}  // namespace cadre
