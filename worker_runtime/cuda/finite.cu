// Finds the first element that is infinite or not a number. An exponent of ones says so in every
// type, so nothing is converted. Blocks without one touch no shared result.
#include <cuda_runtime.h>

#include "worker_runtime/cuda/launch.h"

namespace cadre {
namespace cuda {
namespace {

constexpr int kThreads = 256;
constexpr uint64_t kMaxBlocks = 4096;

template <typename Bits>
__global__ void FirstNonFiniteKernel(const Bits* data, uint64_t count, Bits exponent,
                                     uint64_t offset, uint64_t* first) {
  const uint64_t step = uint64_t{gridDim.x} * kThreads;
  uint64_t found = ~uint64_t{0};
  for (uint64_t i = uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) {
    if ((data[i] & exponent) == exponent) {
      found = i;
      break;
    }
  }
  if (found != ~uint64_t{0}) {
    atomicMin(reinterpret_cast<unsigned long long*>(first),
              static_cast<unsigned long long>(found + offset));
  }
}

unsigned BlocksFor(uint64_t count) {
  const uint64_t blocks = (count + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks);
}

}  // namespace

int LaunchFirstNonFinite(const void* data, Element type, size_t count, uint64_t offset,
                         uint64_t* first, void* stream) {
  if (count == 0) return cudaSuccess;
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  const unsigned blocks = BlocksFor(count);
  switch (type) {
    case Element::kFloat32:
      FirstNonFiniteKernel<uint32_t><<<blocks, kThreads, 0, on>>>(
          static_cast<const uint32_t*>(data), count, 0x7f800000u, offset, first);
      break;
    case Element::kFloat16:
      FirstNonFiniteKernel<uint16_t><<<blocks, kThreads, 0, on>>>(
          static_cast<const uint16_t*>(data), count, uint16_t{0x7c00}, offset, first);
      break;
    case Element::kBfloat16:
      FirstNonFiniteKernel<uint16_t><<<blocks, kThreads, 0, on>>>(
          static_cast<const uint16_t*>(data), count, uint16_t{0x7f80}, offset, first);
      break;
  }
  return cudaGetLastError();
}

}  // namespace cuda
}  // namespace cadre
