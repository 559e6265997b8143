#include "worker_runtime/cuda/kernels.h"

#include <vector>

#include "base/status_macros.h"
#include "worker_runtime/cuda/kernel_check.h"
#include "worker_runtime/cuda/launch.h"

namespace cadre::cuda {

#ifdef CADRE_HAVE_CUDA_KERNELS
namespace {

cuda::Element ElementOf(DataType type) {
  if (type == DataType::kFloat16) return cuda::Element::kFloat16;
  if (type == DataType::kBfloat16) return cuda::Element::kBfloat16;
  return cuda::Element::kFloat32;
}

std::vector<cuda::Part> PartsOf(Span<const BucketPart> parts) {
  std::vector<cuda::Part> result;
  result.reserve(parts.size());
  for (const BucketPart& part : parts) {
    result.push_back({part.tensor.data, part.tensor.count, part.offset});
  }
  return result;
}

}  // namespace

Status ConvertOnGpu(const Buffer& from, const Buffer& to, float scale, CudaStreamHandle stream) {
  RETURN_IF_ERROR(CheckConvert(from, to));
  return CudaStatus(cuda::LaunchConvert(from.data, ElementOf(from.type), to.data,
                                        ElementOf(to.type), from.count, scale, stream),
                    "converting elements");
}

Status PackOnGpu(Span<const BucketPart> parts, const Buffer& bucket, float scale,
                 CudaStreamHandle stream) {
  RETURN_IF_ERROR(CheckParts(parts, bucket));
  if (parts.empty()) return OkStatus();
  const std::vector<cuda::Part> list = PartsOf(parts);
  return CudaStatus(cuda::LaunchPack(list.data(), static_cast<int>(list.size()),
                                     ElementOf(parts.front().tensor.type), bucket.data,
                                     ElementOf(bucket.type), scale, stream),
                    "packing a bucket");
}

Status UnpackOnGpu(const Buffer& bucket, Span<const BucketPart> parts, float scale,
                   CudaStreamHandle stream) {
  RETURN_IF_ERROR(CheckParts(parts, bucket));
  if (parts.empty()) return OkStatus();
  const std::vector<cuda::Part> list = PartsOf(parts);
  return CudaStatus(cuda::LaunchUnpack(bucket.data, ElementOf(bucket.type), list.data(),
                                       static_cast<int>(list.size()),
                                       ElementOf(parts.front().tensor.type), scale, stream),
                    "unpacking a bucket");
}

Status FirstNonFiniteOnGpu(const Buffer& data, uint64_t* first, CudaStreamHandle stream) {
  RETURN_IF_ERROR(CheckKernelBuffer(data));
  RETURN_IF_ERROR(FillOnCudaDevice(first, 0xff, sizeof(*first), stream));
  return CudaStatus(cuda::LaunchFirstNonFinite(data.data, ElementOf(data.type), data.count,
                                               /*offset=*/0, first, stream),
                    "looking for elements that are not finite");
}

size_t SelectionScratchBytes(size_t count) { return cuda::SelectionScratch(count); }

Status SelectTopKOnGpu(const Buffer& data, size_t k, const Selection& selection, void* scratch,
                       CudaStreamHandle stream) {
  RETURN_IF_ERROR(CheckSelection(data, selection, scratch));
  RETURN_IF_ERROR(CheckTopK(data, k, selection));
  return CudaStatus(
      cuda::LaunchSelectTopK(static_cast<const float*>(data.data), data.count, k, selection.indices,
                             selection.values, selection.found, scratch, stream),
      "selecting the greatest elements");
}

Status SelectThresholdOnGpu(const Buffer& data, float threshold, const Selection& selection,
                            void* scratch, CudaStreamHandle stream) {
  RETURN_IF_ERROR(CheckSelection(data, selection, scratch));
  RETURN_IF_ERROR(CheckThreshold(threshold));
  return CudaStatus(cuda::LaunchSelectThreshold(static_cast<const float*>(data.data), data.count,
                                                threshold, selection.capacity, selection.indices,
                                                selection.values, selection.found, scratch, stream),
                    "selecting elements above a threshold");
}

#else

namespace {

Status NotBuilt() {
  return UnimplementedError("this program was built without CUDA's compiler nvcc");
}

}  // namespace

Status ConvertOnGpu(const Buffer&, const Buffer&, float, CudaStreamHandle) { return NotBuilt(); }
Status PackOnGpu(Span<const BucketPart>, const Buffer&, float, CudaStreamHandle) {
  return NotBuilt();
}
Status UnpackOnGpu(const Buffer&, Span<const BucketPart>, float, CudaStreamHandle) {
  return NotBuilt();
}
Status FirstNonFiniteOnGpu(const Buffer&, uint64_t*, CudaStreamHandle) { return NotBuilt(); }
size_t SelectionScratchBytes(size_t) { return 0; }
Status SelectTopKOnGpu(const Buffer&, size_t, const Selection&, void*, CudaStreamHandle) {
  return NotBuilt();
}
Status SelectThresholdOnGpu(const Buffer&, float, const Selection&, void*, CudaStreamHandle) {
  return NotBuilt();
}

#endif

}  // namespace cadre::cuda
