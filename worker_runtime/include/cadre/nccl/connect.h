// A communicator between GPUs, for whoever has an NCCL id: a program that starts its ranks itself,
// and hands the id on in a way of its own.
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
  // Distinguishes several communicators over the same ranks; in errors.
  std::string name = "world";
  // For connecting, and for each operation from when it runs on the GPU.
  std::chrono::nanoseconds timeout = std::chrono::minutes(10);
  // The GPU, as CUDA counts them here; -1: the worker's local rank, and where there is no worker,
  // the one that is current on the calling thread (cudaSetDevice).
  int device = -1;
  // The stream (a cudaStream_t; null is the legacy default stream) that produces what is sent,
  // asked at every call, on the caller's thread. An operation begins when all that the stream was
  // given by then is done; calls themselves do not wait, so reduction overlaps what the stream does
  // next.
  std::function<void*()> producer = [] { return static_cast<void*>(nullptr); };
  // A stream (a cudaStream_t) of that GPU to run on, in place of one of the communicator's own; it
  // must outlive the communicator. Calls put their operation on it before they return, so that what
  // it is given afterwards finds the result; `producer` is not asked.
  std::optional<void*> stream;
};

// `id` is an ncclUniqueId's bytes, as rank 0 got them (MintNcclUniqueId() of unique_id.h, or
// ncclGetUniqueId itself); rank 0 must live until all are connected. Every one of the `size` ranks
// calls it with the same id and its own rank, one rank per GPU, and waits for the others:
// options.timeout at most. Buffers are memory of this rank's GPU, and so is what AllocateBuffer()
// gives. The communicator may be used and destroyed on any thread, and aborts itself when it fails.
//   INVALID_ARGUMENT     the id has not kNcclUniqueIdBytes bytes, or `rank` is not below `size`
//   FAILED_PRECONDITION  no GPU or driver here, or no such GPU; why, in CUDA's words
//   NOT_FOUND            no NCCL here; where it was looked for
//   UNAVAILABLE          a rank or the network failed, in NCCL's words
//   DEADLINE_EXCEEDED    some rank did not come
//   INTERNAL             CUDA or NCCL failed, in their words
//   UNIMPLEMENTED        the library was built without NCCL or CUDA
Result<std::unique_ptr<Communicator>> ConnectNccl(std::string_view id, int rank, int size,
                                                  const NcclOptions& options = {});

// Between the GPUs of the ranks of `host`. Collective: nobody else may use `host` meanwhile, by
// which the ranks exchange the ids. Either all ranks connect, or all get the error of the first one
// that cannot, which is named; besides the above:
//   FAILED_PRECONDITION  two ranks have the same GPU
Result<std::unique_ptr<Communicator>> ConnectNccl(Communicator& host, const NcclOptions& options);

}  // namespace cadre::nccl

#endif  // CADRE_NCCL_CONNECT_H_
