// The work of kernels.h on the CPU and in its memory: for where there is no GPU, and what the
// kernels are compared with. The same arguments, errors and bits; done when the call returns. Pure.
#ifndef CADRE_WORKER_RUNTIME_CUDA_CPU_KERNELS_H_
#define CADRE_WORKER_RUNTIME_CUDA_CPU_KERNELS_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker_runtime/cuda/kernels.h"

namespace cadre::cuda {

absl::Status ConvertOnCpu(const Buffer& from, const Buffer& to, float scale);
absl::Status PackOnCpu(absl::Span<const BucketPart> parts, const Buffer& bucket, float scale);
absl::Status UnpackOnCpu(const Buffer& bucket, absl::Span<const BucketPart> parts, float scale);
absl::Status FirstNonFiniteOnCpu(const Buffer& data, uint64_t* first);
absl::Status SelectTopKOnCpu(const Buffer& data, size_t k, const Selection& selection);
absl::Status SelectThresholdOnCpu(const Buffer& data, float threshold, const Selection& selection);

}  // namespace cadre::cuda

#endif  // CADRE_WORKER_RUNTIME_CUDA_CPU_KERNELS_H_
