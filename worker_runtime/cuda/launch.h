// Starts the kernels of pack.cu, finite.cu and select.cu on a stream. Plain C++ without Abseil, so
// that nvcc compiles little; kernels.h is what programs call. Nothing is checked here. All return a
// cudaError_t.
#ifndef CADRE_WORKER_RUNTIME_CUDA_LAUNCH_H_
#define CADRE_WORKER_RUNTIME_CUDA_LAUNCH_H_

#include <cstddef>
#include <cstdint>

namespace cadre {
namespace cuda {

// The element types that kernels know.
enum class Element { kFloat32, kFloat16, kBfloat16 };

// A part of a bucket: a tensor's memory, and where it begins in the bucket.
struct Part {
  void* data;
  uint64_t count;
  uint64_t offset;
};

// Parts that one launch takes: with the rest they fit into a kernel's 4 KiB of parameters.
constexpr int kMaxPartsPerLaunch = 128;

int LaunchConvert(const void* from, Element from_type, void* to, Element to_type, size_t count,
                  float scale, void* stream);
int LaunchPack(const Part* parts, int part_count, Element part_type, void* bucket,
               Element bucket_type, float scale, void* stream);
int LaunchUnpack(const void* bucket, Element bucket_type, const Part* parts, int part_count,
                 Element part_type, float scale, void* stream);

// Lowers *first to the index of the first element that is infinite or not a number.
int LaunchFirstNonFinite(const void* data, Element type, size_t count, uint64_t offset,
                         uint64_t* first, void* stream);

size_t SelectionScratch(size_t count);
int LaunchSelectTopK(const float* values, size_t count, size_t k, uint32_t* indices, float* chosen,
                     uint64_t* found, void* scratch, void* stream);
int LaunchSelectThreshold(const float* values, size_t count, float threshold, size_t capacity,
                          uint32_t* indices, float* chosen, uint64_t* found, void* scratch,
                          void* stream);

}  // namespace cuda
}  // namespace cadre

#endif  // CADRE_WORKER_RUNTIME_CUDA_LAUNCH_H_
