// The work of kernels.h on the CPU and in its memory: for where there is no GPU, and what the
// kernels are compared with. The same arguments, errors and bits; done when the call returns. Pure.
#ifndef CADRE_WORKER_RUNTIME_CUDA_CPU_KERNELS_H_
#define CADRE_WORKER_RUNTIME_CUDA_CPU_KERNELS_H_

#include "cadre/span.h"
#include "cadre/status.h"
#include "worker_runtime/cuda/kernels.h"

namespace cadre::cuda {

Status ConvertOnCpu(const Buffer& from, const Buffer& to, float scale);
Status PackOnCpu(Span<const BucketPart> parts, const Buffer& bucket, float scale);
Status UnpackOnCpu(const Buffer& bucket, Span<const BucketPart> parts, float scale);
Status FirstNonFiniteOnCpu(const Buffer& data, uint64_t* first);
Status SelectTopKOnCpu(const Buffer& data, size_t k, const Selection& selection);
Status SelectThresholdOnCpu(const Buffer& data, float threshold, const Selection& selection);

}  // namespace cadre::cuda

#endif  // CADRE_WORKER_RUNTIME_CUDA_CPU_KERNELS_H_
