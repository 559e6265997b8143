// Collectives between GPUs, by NCCL. Every buffer is memory of this rank's GPU, and so is what
// AllocateBuffer() gives. NCCL is loaded at run time: a program that links this starts without it,
// without a driver and without a GPU.
#ifndef CADRE_WORKER_RUNTIME_NCCL_NCCL_COMMUNICATOR_H_
#define CADRE_WORKER_RUNTIME_NCCL_NCCL_COMMUNICATOR_H_

#include <memory>

#include "absl/time/time.h"
#include "cadre/communicator.h"
#include "cadre/nccl/connect.h"
#include "cadre/result.h"
#include "cadre/worker.h"
#include "worker_runtime/cuda/device.h"

namespace cadre::nccl {

// How long the destructor lets what was sent reach the others.
constexpr absl::Duration kFinishWait = absl::Seconds(5);

// Operations run on a stream of the communicator's own. When Wait() of one returned OK its result
// is there for every stream. Beyond Communicator:
// - Send and Receive take their turn with the other operations, and tags are not compared: that is
//   how NCCL has it. Two ranks that send to each other must not both send first.
// - Averages and multiplied sums are NCCL's own: in float16 and bfloat16 the factor is rounded to
//   the type. A factor for maximum or minimum is UNIMPLEMENTED.
// - Parts that differ in size are a group of reductions to, or broadcasts from, each rank. Counts
//   are not compared: where ranks give different ones, what happens is NCCL's affair.
// - Split needs NCCL 2.18.
// Errors: UNAVAILABLE (a peer or the network failed), DEADLINE_EXCEEDED (some rank did not take
// part), INTERNAL (CUDA or NCCL failed), each in NCCL's or CUDA's own words.
class NcclCommunicator : public Communicator {
 public:
  // The stream that operations run on; for measuring.
  virtual cuda::CudaStreamHandle stream() const = 0;
};

// Every rank of the world calls it the same number of times with the same name; `worker` must
// outlive the call, not the communicator. One rank per GPU, except where NCCL_HOSTID differs
// between the ranks. Besides the above:
//   FAILED_PRECONDITION  no GPU or driver here, or no such GPU; why, in CUDA's words
//   NOT_FOUND            no NCCL here; where it was looked for
//   UNAVAILABLE          another rank failed; which, and why
//   UNIMPLEMENTED        this program was built without NCCL or CUDA
Result<std::unique_ptr<NcclCommunicator>> ConnectNccl(Worker& worker, const NcclOptions& options);

}  // namespace cadre::nccl

#endif  // CADRE_WORKER_RUNTIME_NCCL_NCCL_COMMUNICATOR_H_
