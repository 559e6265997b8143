// NCCL, loaded at run time: its functions as a table. Where CADRE_WITH_NCCL is undefined (no nccl.h
// of 2.14 or newer at build time) there is no table. Thread safe.
#ifndef CADRE_WORKER_RUNTIME_NCCL_NCCL_API_H_
#define CADRE_WORKER_RUNTIME_NCCL_NCCL_API_H_

#include <string>

#include "absl/strings/string_view.h"
#include "cadre/result.h"
#include "cadre/status.h"

#ifdef CADRE_HAVE_NCCL_HEADERS
#include <nccl.h>
#if NCCL_VERSION_CODE >= 21400
#define CADRE_WITH_NCCL 1
#endif
#endif

namespace cadre::nccl {

// Returns the address of one of NCCL's functions. NOT_FOUND: there is no library, or it is too old
// to have the function. The library is loaded once and stays loaded: the one that
// CADRE_NCCL_LIBRARY names, otherwise the one that OpenVendorLibrary() (cuda/cuda_api.h) finds.
Result<void*> NcclFunction(const char* name);

// Returns UNIMPLEMENTED with the reason why this program was built without NCCL.
Status NcclUnavailable();

// Returns "2.28.9" for 22809 and "2.7.8" for 2708.
std::string NcclVersionText(int version);

#ifdef CADRE_WITH_NCCL

struct NcclApi {
  int version = 0;

  decltype(&ncclGetErrorString) GetErrorString = nullptr;
  decltype(&ncclCommInitRankConfig) CommInitRankConfig = nullptr;
  decltype(&ncclCommGetAsyncError) CommGetAsyncError = nullptr;
  decltype(&ncclCommFinalize) CommFinalize = nullptr;
  decltype(&ncclCommDestroy) CommDestroy = nullptr;
  decltype(&ncclCommAbort) CommAbort = nullptr;
  decltype(&ncclCommCount) CommCount = nullptr;
  decltype(&ncclCommUserRank) CommUserRank = nullptr;
  decltype(&ncclAllReduce) AllReduce = nullptr;
  decltype(&ncclReduce) Reduce = nullptr;
  decltype(&ncclReduceScatter) ReduceScatter = nullptr;
  decltype(&ncclBroadcast) Broadcast = nullptr;
  decltype(&ncclAllGather) AllGather = nullptr;
  decltype(&ncclSend) Send = nullptr;
  decltype(&ncclRecv) Recv = nullptr;
  decltype(&ncclGroupStart) GroupStart = nullptr;
  decltype(&ncclGroupEnd) GroupEnd = nullptr;
  decltype(&ncclRedOpCreatePreMulSum) RedOpCreatePreMulSum = nullptr;
  decltype(&ncclRedOpDestroy) RedOpDestroy = nullptr;

  // Null if the library is too old. The types are spelled out because the header may be too old,
  // too.
  const char* (*GetLastError)(ncclComm_t) = nullptr;                                      // 2.13
  ncclResult_t (*CommSplit)(ncclComm_t, int, int, ncclComm_t*, ncclConfig_t*) = nullptr;  // 2.18
  ncclResult_t (*MemAlloc)(void**, size_t) = nullptr;                                     // 2.19
  ncclResult_t (*MemFree)(void*) = nullptr;
  ncclResult_t (*CommRegister)(ncclComm_t, void*, size_t, void**) = nullptr;
  ncclResult_t (*CommDeregister)(ncclComm_t, void*) = nullptr;
  ncclResult_t (*CommInitRankScalable)(ncclComm_t*, int, int, int, ncclUniqueId*,  // 2.23
                                       ncclConfig_t*) = nullptr;
};

// Loads the library once. NOT_FOUND: there is no library (the text says where it was searched for),
// or it is older than 2.14 (the text says which function it lacks).
Result<const NcclApi*> LoadNcclApi();

// Returns OK, or an error "WHAT: NCCL's words: NCCL's last error". `communicator` may be null.
// `result` must not be ncclInProgress.
//   UNAVAILABLE          a peer or the network failed
//   INVALID_ARGUMENT, FAILED_PRECONDITION  NCCL's invalid argument and invalid usage
//   INTERNAL             CUDA or NCCL itself failed
Status NcclStatus(const NcclApi& api, ncclResult_t result, ncclComm_t communicator,
                  absl::string_view what);

#endif  // CADRE_WITH_NCCL

}  // namespace cadre::nccl

#endif  // CADRE_WORKER_RUNTIME_NCCL_NCCL_API_H_
