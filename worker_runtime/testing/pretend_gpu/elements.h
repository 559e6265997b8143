// Elements as NCCL has them, and reductions of them. Pure. Only where NCCL's header is.
#ifndef CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_ELEMENTS_H_
#define CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_ELEMENTS_H_

#ifdef CADRE_HAVE_NCCL_HEADERS
#include <nccl.h>

#include <cstddef>
#include <string>
#include <vector>

namespace cadre::pretend_gpu {

// 0: a type that is not simulated.
size_t SizeOf(ncclDataType_t type);
std::string NameOf(ncclDataType_t type);
// Of a built-in operation; others are "sum with a factor".
std::string NameOf(ncclRedOp_t op);

// Of the ranks' elements, in rank order; 16-bit floats are added in float32. Averages are of
// integers: of floats NCCL makes sums of what each rank has multiplied (AverageFactor()).
void Reduce(ncclDataType_t type, ncclRedOp_t op, const std::vector<const char*>& inputs,
            size_t count, char* output);

// An element that is 1 / `ranks`; empty for integers.
std::string AverageFactor(ncclDataType_t type, int ranks);

// `scalar` is an element of the type; the product is rounded to it.
void Multiply(ncclDataType_t type, const char* scalar, size_t count, char* elements);

// How many elements NCCL 2.28.9 multiplies and writes where a communicator has one rank: its blocks
// take equal shares, which are rounded down (src/device/onerank.cu; mended in 2.29.7).
size_t MultipliedByOneRank(ncclDataType_t type, size_t count);

}  // namespace cadre::pretend_gpu

#endif  // CADRE_HAVE_NCCL_HEADERS

#endif  // CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_ELEMENTS_H_
