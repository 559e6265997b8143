// The checks that the kernels make before they start, on the GPU and on the CPU. Pure.
#ifndef CADRE_WORKER_RUNTIME_CUDA_KERNEL_CHECK_H_
#define CADRE_WORKER_RUNTIME_CUDA_KERNEL_CHECK_H_

#include "cadre/span.h"
#include "cadre/status.h"
#include "worker_runtime/cuda/kernels.h"

namespace cadre::cuda {

// INVALID_ARGUMENT: elements without memory, or of a type that kernels do not know.
Status CheckKernelBuffer(const Buffer& buffer);
// INVALID_ARGUMENT: different counts, or one memory under types of different sizes.
Status CheckConvert(const Buffer& from, const Buffer& to);
// INVALID_ARGUMENT: a part that ends after the bucket, or parts of several types.
Status CheckParts(Span<const BucketPart> parts, const Buffer& bucket);
// INVALID_ARGUMENT: not float32, too many, or a selection without memory.
Status CheckSelection(const Buffer& data, const Selection& selection, const void* scratch);
// INVALID_ARGUMENT: more than there are, or than there is room for.
Status CheckTopK(const Buffer& data, size_t k, const Selection& selection);
// INVALID_ARGUMENT: negative or not a number.
Status CheckThreshold(float threshold);

}  // namespace cadre::cuda

#endif  // CADRE_WORKER_RUNTIME_CUDA_KERNEL_CHECK_H_
