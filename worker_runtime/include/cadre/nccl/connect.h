// A communicator between GPUs, created from an NCCL id: for a program that starts its ranks itself
// and distributes the id in its own way.
//
//   const std::string id = rank == 0 ? Share(*cadre::nccl::MintNcclUniqueId()) : Receive();
//   CADRE_ASSIGN_OR_RETURN(auto communicator, cadre::nccl::ConnectNccl(id, rank, size));
//
// The header needs neither CUDA nor NCCL, and a program that links this starts without them.
#ifndef CADRE_NCCL_CONNECT_H_
#define CADRE_NCCL_CONNECT_H_

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "cadre/communicator.h"
#include "cadre/result.h"

namespace cadre::nccl {

struct NcclOptions {
  // Distinguishes several communicators over the same ranks in error messages.
  std::string name = "world";
  // Limits connecting, and each operation, counted from when it runs on the GPU.
  std::chrono::nanoseconds timeout = std::chrono::minutes(10);
  // The CUDA device number in this process; -1: the worker's local rank or, without a worker, the
  // device that is current on the calling thread (cudaSetDevice).
  int device = -1;
  // Returns the stream (a cudaStream_t; null is the legacy default stream) that produces the data
  // to send; called at every operation, on the caller's thread. An operation begins when all work
  // submitted to that stream so far is done. The calls themselves do not wait, so the reduction
  // overlaps the stream's later work.
  std::function<void*()> producer = [] { return static_cast<void*>(nullptr); };
  // A stream (a cudaStream_t) of that GPU to run on, instead of one of the communicator's own; it
  // must outlive the communicator. Calls put their operation on it before they return, so that work
  // submitted to it afterwards sees the result; `producer` is not called.
  std::optional<void*> stream;
};

// `id` is the bytes of an ncclUniqueId, created on rank 0 (by MintNcclUniqueId() of unique_id.h, or
// ncclGetUniqueId); rank 0 must live until all ranks are connected. Each of the `size` ranks, one
// per GPU, calls it with the same id and its own rank, and waits for the others, at most
// options.timeout. Buffers must be memory of this rank's GPU, and AllocateBuffer() returns such
// memory. The communicator may be used and destroyed on any thread, and aborts itself when it
// fails.
//   INVALID_ARGUMENT     the id has not kNcclUniqueIdBytes bytes, or `rank` is not below `size`
//   FAILED_PRECONDITION  no GPU or driver here, or no such GPU; with CUDA's message
//   NOT_FOUND            no NCCL library; lists where it was searched for
//   UNAVAILABLE          a rank or the network failed, with NCCL's message
//   DEADLINE_EXCEEDED    some rank did not connect
//   INTERNAL             CUDA or NCCL failed, with its message
//   UNIMPLEMENTED        the library was built without NCCL or CUDA
Result<std::unique_ptr<Communicator>> ConnectNccl(std::string_view id, int rank, int size,
                                                  const NcclOptions& options = {});

// Connects the GPUs of the ranks of `host`. Collective: the ranks exchange the ids through `host`,
// which must not be used otherwise meanwhile. Either all ranks connect, or all get the error of the
// first one that cannot, which is named; in addition to the errors above:
//   FAILED_PRECONDITION  two ranks have the same GPU
Result<std::unique_ptr<Communicator>> ConnectNccl(Communicator& host, const NcclOptions& options);

}  // namespace cadre::nccl

#endif  // CADRE_NCCL_CONNECT_H_
