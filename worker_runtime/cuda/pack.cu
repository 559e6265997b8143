// Conversion between element types, and tensors into a bucket and back. Bound by memory: a thread
// moves vectors where both sides are aligned for them, and single elements where they are not.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "worker_runtime/cuda/launch.h"
#include "worker_runtime/cuda/vector.h"

namespace cadre {
namespace cuda {
namespace {

constexpr int kThreads = 256;
// Vectors, or elements, that a thread has under way at a time.
constexpr int kUnroll = 4;
// Elements of a block's turn, at least: 4 is the shortest vector.
constexpr uint64_t kPerBlock = uint64_t{kThreads} * kUnroll * 4;
constexpr uint64_t kMaxBlocks = 1 << 20;
// One part's blocks: enough for a GPU together with the other parts.
constexpr uint64_t kMaxBlocksPerPart = 1024;

struct Parts {
  Part part[kMaxPartsPerLaunch];
};
static_assert(sizeof(Parts) < 4000, "kernel parameters have 4 KiB");

__device__ inline float Widen(float value) { return value; }
__device__ inline float Widen(__half value) { return __half2float(value); }
__device__ inline float Widen(__nv_bfloat16 value) { return __bfloat162float(value); }

template <typename T>
__device__ inline T Narrow(float value);
template <>
__device__ inline float Narrow<float>(float value) {
  return value;
}
template <>
__device__ inline __half Narrow<__half>(float value) {
  return __float2half_rn(value);
}
template <>
__device__ inline __nv_bfloat16 Narrow<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

// This block's share of the vectors. `from` may be `to` where the types have one size.
template <typename From, typename To, int kElements>
__device__ inline void ConvertVectors(const From* from, To* to, uint64_t vectors, float scale) {
  const auto* const source = reinterpret_cast<const Vector<From, kElements>*>(from);
  auto* const target = reinterpret_cast<Vector<To, kElements>*>(to);
  constexpr uint64_t kTurn = uint64_t{kThreads} * kUnroll;
  for (uint64_t base = blockIdx.x * kTurn + threadIdx.x; base < vectors;
       base += gridDim.x * kTurn) {
    Vector<From, kElements> values[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const uint64_t index = base + uint64_t(u) * kThreads;
      if (index < vectors) values[u] = source[index];
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const uint64_t index = base + uint64_t(u) * kThreads;
      Vector<To, kElements> converted;
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        converted.element[e] = Narrow<To>(Widen(values[u].element[e]) * scale);
      }
      if (index < vectors) target[index] = converted;
    }
  }
}

template <typename From, typename To>
__device__ inline void Convert(const From* from, To* to, uint64_t count, float scale) {
  constexpr int kLarger = sizeof(From) > sizeof(To) ? sizeof(From) : sizeof(To);
  constexpr int kElements = kVectorBytes / kLarger;
  uint64_t done = 0;
  if (IsAlignedFor<Vector<From, kElements>>(from) && IsAlignedFor<Vector<To, kElements>>(to)) {
    ConvertVectors<From, To, kElements>(from, to, count / kElements, scale);
    done = count / kElements * kElements;
  }
  for (uint64_t index = done + uint64_t{blockIdx.x} * kThreads + threadIdx.x; index < count;
       index += uint64_t{gridDim.x} * kThreads) {
    to[index] = Narrow<To>(Widen(from[index]) * scale);
  }
}

template <typename From, typename To>
__global__ void ConvertKernel(const From* from, To* to, uint64_t count, float scale) {
  Convert(from, to, count, scale);
}

// blockIdx.y is the part.
template <typename T, typename Bucket>
__global__ void PackKernel(Parts parts, Bucket* bucket, float scale) {
  const Part& part = parts.part[blockIdx.y];
  Convert(static_cast<const T*>(part.data), bucket + part.offset, part.count, scale);
}

template <typename Bucket, typename T>
__global__ void UnpackKernel(const Bucket* bucket, Parts parts, float scale) {
  const Part& part = parts.part[blockIdx.y];
  Convert(bucket + part.offset, static_cast<T*>(part.data), part.count, scale);
}

uint64_t BlocksFor(uint64_t count, uint64_t most) {
  const uint64_t blocks = (count + kPerBlock - 1) / kPerBlock;
  return blocks < most ? blocks : most;
}

// Calls f with a null pointer of the element's type.
template <typename F>
int WithType(Element type, F f) {
  switch (type) {
    case Element::kFloat32:
      return f(static_cast<float*>(nullptr));
    case Element::kFloat16:
      return f(static_cast<__half*>(nullptr));
    case Element::kBfloat16:
      return f(static_cast<__nv_bfloat16*>(nullptr));
  }
  return cudaErrorInvalidValue;
}

template <typename F>
int WithTypes(Element a, Element b, F f) {
  return WithType(a, [&](auto* x) { return WithType(b, [&](auto* y) { return f(x, y); }); });
}

// Calls launch(parts, grid) for as many parts at a time as a launch takes.
template <typename F>
int ForGroups(const Part* parts, int part_count, F launch) {
  for (int begin = 0; begin < part_count; begin += kMaxPartsPerLaunch) {
    Parts group;
    int used = 0;
    uint64_t largest = 0;
    for (int i = begin; i < part_count && i < begin + kMaxPartsPerLaunch; ++i) {
      if (parts[i].count == 0) continue;
      group.part[used++] = parts[i];
      if (parts[i].count > largest) largest = parts[i].count;
    }
    if (used == 0) continue;
    launch(group, dim3(static_cast<unsigned>(BlocksFor(largest, kMaxBlocksPerPart)), used));
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace

int LaunchConvert(const void* from, Element from_type, void* to, Element to_type, size_t count,
                  float scale, void* stream) {
  if (count == 0) return cudaSuccess;
  const unsigned blocks = static_cast<unsigned>(BlocksFor(count, kMaxBlocks));
  return WithTypes(from_type, to_type, [&](auto* f, auto* t) -> int {
    ConvertKernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        static_cast<decltype(f)>(const_cast<void*>(from)), static_cast<decltype(t)>(to),
        uint64_t{count}, scale);
    return cudaGetLastError();
  });
}

int LaunchPack(const Part* parts, int part_count, Element part_type, void* bucket,
               Element bucket_type, float scale, void* stream) {
  return WithTypes(part_type, bucket_type, [&](auto* p, auto* b) -> int {
    using T = typename std::remove_pointer<decltype(p)>::type;
    using B = typename std::remove_pointer<decltype(b)>::type;
    return ForGroups(parts, part_count, [&](const Parts& group, dim3 grid) {
      PackKernel<T, B><<<grid, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
          group, static_cast<B*>(bucket), scale);
    });
  });
}

int LaunchUnpack(const void* bucket, Element bucket_type, const Part* parts, int part_count,
                 Element part_type, float scale, void* stream) {
  return WithTypes(bucket_type, part_type, [&](auto* b, auto* p) -> int {
    using B = typename std::remove_pointer<decltype(b)>::type;
    using T = typename std::remove_pointer<decltype(p)>::type;
    return ForGroups(parts, part_count, [&](const Parts& group, dim3 grid) {
      UnpackKernel<B, T><<<grid, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
          static_cast<const B*>(bucket), group, scale);
    });
  });
}

}  // namespace cuda
}  // namespace cadre
