// Collectives between GPUs, with NCCL. Every buffer is memory of this rank's GPU, and so is what
// AllocateBuffer() returns. NCCL is loaded at run time: a program that links this starts without
// NCCL, a driver or a GPU.
#ifndef CADRE_WORKER_RUNTIME_NCCL_NCCL_COMMUNICATOR_H_
#define CADRE_WORKER_RUNTIME_NCCL_NCCL_COMMUNICATOR_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "cadre/communicator.h"
#include "cadre/nccl/connect.h"
#include "cadre/result.h"
#include "cadre/status.h"
#include "cadre/worker.h"
#include "worker_runtime/cuda/device.h"

namespace cadre::nccl {

// The messages that ranks exchange before they form an NCCL communicator over an existing one, so
// that all of them form it or all get the same error. Pure.

// The size of a message, equal on all ranks. Longer texts are cut.
inline constexpr size_t kNcclOfferBytes = 512;

struct NcclOffer {
  // If not OK, this is why the rank cannot take part, and the other fields are ignored.
  Status status;
  // Identifies the machine and the GPU: equal on two ranks that use the same GPU. If it is empty it
  // is not compared, as in the exchange after the communicator was formed.
  std::string gpu;
  // The NCCL id of a rank with a root (root_ids.h); empty on the others.
  std::string id;
};

std::string WriteNcclOffer(const NcclOffer& offer);

// `messages` are those of all ranks, concatenated. Returns the roots' ids in order. Errors:
//   the first rank's own error, with its rank
//   FAILED_PRECONDITION  two ranks have the same GPU, which NCCL does not allow
//   INTERNAL             a message was not written by WriteNcclOffer()
Result<std::vector<std::string>> AgreeOnNcclIds(const std::string& messages);

// The destructor waits this long for sent data to reach the other ranks.
constexpr absl::Duration kFinishWait = absl::Seconds(5);

// Operations run on a stream of the communicator's own. Once Wait() of an operation has returned
// OK, every stream sees its result. It differs from Communicator as follows:
// - Send and Receive are executed in order with the other operations, and tags are not compared:
//   NCCL works this way. Two ranks that send to each other must not both send first.
// - Averages and multiplied sums are NCCL's own: in float16 and bfloat16 the factor is rounded to
//   the type. A factor for maximum or minimum is UNIMPLEMENTED.
// - Parts of varying size are a group of reductions to, or broadcasts from, each rank. Counts are
//   not compared: if ranks give different ones, what happens is up to NCCL.
// - Split needs NCCL 2.18.
// Errors: UNAVAILABLE (a peer or the network failed), DEADLINE_EXCEEDED (some rank did not take
// part), INTERNAL (CUDA or NCCL failed), each in NCCL's or CUDA's own words.
class NcclCommunicator : public Communicator {
 public:
  // The stream that operations run on; for measuring.
  virtual cuda::CudaStreamHandle stream() const = 0;
};

// Every rank of the world must call this equally often with the same name. `worker` must outlive
// the call, but not the communicator. There must be one rank per GPU, unless NCCL_HOSTID differs
// between the ranks. Errors besides those above:
//   FAILED_PRECONDITION  no GPU or driver, or no such GPU; the reason in CUDA's words
//   NOT_FOUND            no NCCL; where it was searched for
//   UNAVAILABLE          another rank failed; its rank and reason
//   UNIMPLEMENTED        this program was built without NCCL or CUDA
Result<std::unique_ptr<NcclCommunicator>> ConnectNccl(Worker& worker, const NcclOptions& options);

}  // namespace cadre::nccl

#endif  // CADRE_WORKER_RUNTIME_NCCL_NCCL_COMMUNICATOR_H_
