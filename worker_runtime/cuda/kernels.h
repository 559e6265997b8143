// Kernels for gradients on the GPU around a collective: conversion, buckets, a check for NaN, and
// selection. Calls return at once; the work runs in the order of `stream`, on the device that
// is current. All memory is the device's. cpu_kernels.h has the same on the CPU: the results are
// the same bits, but for what a NaN carries. Thread safe.
//
// Element types are float32, float16 and bfloat16; narrowing rounds to the nearest, ties to even,
// scaling is in float32. Errors: INVALID_ARGUMENT for what cannot be, CudaStatus's for what CUDA
// refuses, UNIMPLEMENTED where the program was built without nvcc.
#ifndef CADRE_WORKER_RUNTIME_CUDA_KERNELS_H_
#define CADRE_WORKER_RUNTIME_CUDA_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "cadre/communicator.h"
#include "cadre/span.h"
#include "cadre/status.h"
#include "worker_runtime/cuda/device.h"

namespace cadre::cuda {

// Elements that a selection looks at: their indices are 32-bit, one is kept free.
constexpr size_t kMaxSelectable = (size_t{1} << 31) - 1;

// FirstNonFinite's result where all is finite.
constexpr uint64_t kAllFinite = ~uint64_t{0};

// A tensor's place in a bucket: it begins with the bucket's element number `offset`.
struct BucketPart {
  Buffer tensor;
  size_t offset = 0;
};

// to = from * scale, element by element. Both may be the same memory where their types have one
// size.
Status ConvertOnGpu(const Buffer& from, const Buffer& to, float scale, CudaStreamHandle stream);

// The bucket gets the parts' elements times `scale`; elements between parts stay. All parts have
// one type. The list itself may go when the call returns.
Status PackOnGpu(Span<const BucketPart> parts, const Buffer& bucket, float scale,
                 CudaStreamHandle stream);
// The parts get the bucket's elements times `scale`.
Status UnpackOnGpu(const Buffer& bucket, Span<const BucketPart> parts, float scale,
                   CudaStreamHandle stream);

// *first becomes the least index of an element that is infinite or not a number, or kAllFinite.
Status FirstNonFiniteOnGpu(const Buffer& data, uint64_t* first, CudaStreamHandle stream);

// Where a selection goes: float32 elements with their indices, in the order of the indices.
struct Selection {
  uint32_t* indices = nullptr;
  float* values = nullptr;
  size_t capacity = 0;
  // How many there are. A threshold may find more than `capacity`; the first ones are there then.
  uint64_t* found = nullptr;
};

// Scratch memory that a selection among `count` elements needs.
size_t SelectionScratchBytes(size_t count);

// The `k` elements of greatest magnitude; of equal ones those with the least index. NaN is greater
// than everything, so it is passed on and not hidden.
Status SelectTopKOnGpu(const Buffer& data, size_t k, const Selection& selection, void* scratch,
                       CudaStreamHandle stream);
// Those whose magnitude is `threshold` or more, and NaN.
Status SelectThresholdOnGpu(const Buffer& data, float threshold, const Selection& selection,
                            void* scratch, CudaStreamHandle stream);

}  // namespace cadre::cuda

#endif  // CADRE_WORKER_RUNTIME_CUDA_KERNELS_H_
