// Elements of NCCL's types, and reductions of them. Pure. Compiled only where NCCL's header is.
#ifndef CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_ELEMENTS_H_
#define CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_ELEMENTS_H_

#ifdef CADRE_HAVE_NCCL_HEADERS
#include <nccl.h>

#include <cstddef>
#include <string>
#include <vector>

namespace cadre::pretend_gpu {

// Returns 0 for a type that is not simulated.
size_t SizeOf(ncclDataType_t type);
std::string NameOf(ncclDataType_t type);
// Returns the name of a built-in operation; any other is "sum with a factor".
std::string NameOf(ncclRedOp_t op);

// Reduces the ranks' elements in rank order; 16-bit floats are added in float32. ncclAvg is
// supported for integers only: for floats NCCL sums what each rank has multiplied
// (AverageFactor()).
void Reduce(ncclDataType_t type, ncclRedOp_t op, const std::vector<const char*>& inputs,
            size_t count, char* output);

// Returns an element with the value 1 / `ranks`, or "" for integers.
std::string AverageFactor(ncclDataType_t type, int ranks);

// `scalar` is an element of the type; the product is rounded to it.
void Multiply(ncclDataType_t type, const char* scalar, size_t count, char* elements);

// Returns how many elements NCCL 2.28.9 multiplies and writes if a communicator has one rank: its
// blocks take equal shares, which are rounded down (src/device/onerank.cu; fixed in 2.29.7).
size_t MultipliedByOneRank(ncclDataType_t type, size_t count);

}  // namespace cadre::pretend_gpu

#endif  // CADRE_HAVE_NCCL_HEADERS

#endif  // CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_ELEMENTS_H_
