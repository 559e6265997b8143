// NCCL's functions as a table, filled from the library that is loaded at run time. Only for files
// of this folder: with CADRE_WITH_NCCL undefined (no nccl.h of 2.14 or newer when this was built)
// there is only NcclUnavailable(). Thread safe.
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

// UNIMPLEMENTED: why this program has no NCCL in it.
Status NcclUnavailable();

// 22809 is "2.28.9", 2708 is "2.7.8".
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

  // Null where the library is older than they are. Written out, because the header may be too.
  const char* (*GetLastError)(ncclComm_t) = nullptr;                                      // 2.13
  ncclResult_t (*CommSplit)(ncclComm_t, int, int, ncclComm_t*, ncclConfig_t*) = nullptr;  // 2.18
  ncclResult_t (*MemAlloc)(void**, size_t) = nullptr;                                     // 2.19
  ncclResult_t (*MemFree)(void*) = nullptr;
  ncclResult_t (*CommRegister)(ncclComm_t, void*, size_t, void**) = nullptr;
  ncclResult_t (*CommDeregister)(ncclComm_t, void*) = nullptr;
  ncclResult_t (*CommInitRankScalable)(ncclComm_t*, int, int, int, ncclUniqueId*,  // 2.23
                                       ncclConfig_t*) = nullptr;
};

// Loaded once. NOT_FOUND: no library, saying where it was looked for, or one older than 2.14,
// saying which function it lacks.
Result<const NcclApi*> LoadNcclApi();

// OK, or "WHAT: NCCL's words: NCCL's last error". `communicator` may be null. Not for
// ncclInProgress.
//   UNAVAILABLE          a peer or the network failed
//   INVALID_ARGUMENT, FAILED_PRECONDITION  what NCCL calls invalid argument and usage
//   INTERNAL             CUDA failed, or NCCL itself
Status NcclStatus(const NcclApi& api, ncclResult_t result, ncclComm_t communicator,
                  absl::string_view what);

#endif  // CADRE_WITH_NCCL

}  // namespace cadre::nccl

#endif  // CADRE_WORKER_RUNTIME_NCCL_NCCL_API_H_
