#include "worker_runtime/nccl/nccl_api.h"

#include <dlfcn.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "worker_runtime/cuda/cuda_api.h"

namespace cadre::nccl {

Status NcclUnavailable() {
  return UnimplementedError("this program was built without NCCL's header nccl.h (2.14 or newer)");
}

std::string NcclVersionText(int version) {
  // Up to 2.8 the major version was multiplied by 1000.
  const int major = version < 10000 ? version / 1000 : version / 10000;
  const int rest = version < 10000 ? version % 1000 : version % 10000;
  return absl::StrCat(major, ".", rest / 100, ".", rest % 100);
}

#ifdef CADRE_WITH_NCCL
namespace {

template <typename F>
Status LoadRequired(const char* name, F* function) {
  ASSIGN_OR_RETURN(void* const address, NcclFunction(name));
  *function = reinterpret_cast<F>(address);
  return OkStatus();
}

template <typename F>
void LoadOptional(const char* name, F* function) {
  const Result<void*> address = NcclFunction(name);
  if (address.ok()) *function = reinterpret_cast<F>(*address);
}

Status Fill(NcclApi* api) {
  decltype(&ncclGetVersion) get_version = nullptr;
  RETURN_IF_ERROR(LoadRequired("ncclGetVersion", &get_version));
  get_version(&api->version);
  RETURN_IF_ERROR(LoadRequired("ncclGetErrorString", &api->GetErrorString));
  RETURN_IF_ERROR(LoadRequired("ncclCommInitRankConfig", &api->CommInitRankConfig));
  RETURN_IF_ERROR(LoadRequired("ncclCommGetAsyncError", &api->CommGetAsyncError));
  RETURN_IF_ERROR(LoadRequired("ncclCommFinalize", &api->CommFinalize));
  RETURN_IF_ERROR(LoadRequired("ncclCommDestroy", &api->CommDestroy));
  RETURN_IF_ERROR(LoadRequired("ncclCommAbort", &api->CommAbort));
  RETURN_IF_ERROR(LoadRequired("ncclCommCount", &api->CommCount));
  RETURN_IF_ERROR(LoadRequired("ncclCommUserRank", &api->CommUserRank));
  RETURN_IF_ERROR(LoadRequired("ncclAllReduce", &api->AllReduce));
  RETURN_IF_ERROR(LoadRequired("ncclReduce", &api->Reduce));
  RETURN_IF_ERROR(LoadRequired("ncclReduceScatter", &api->ReduceScatter));
  RETURN_IF_ERROR(LoadRequired("ncclBroadcast", &api->Broadcast));
  RETURN_IF_ERROR(LoadRequired("ncclAllGather", &api->AllGather));
  RETURN_IF_ERROR(LoadRequired("ncclSend", &api->Send));
  RETURN_IF_ERROR(LoadRequired("ncclRecv", &api->Recv));
  RETURN_IF_ERROR(LoadRequired("ncclGroupStart", &api->GroupStart));
  RETURN_IF_ERROR(LoadRequired("ncclGroupEnd", &api->GroupEnd));
  RETURN_IF_ERROR(LoadRequired("ncclRedOpCreatePreMulSum", &api->RedOpCreatePreMulSum));
  RETURN_IF_ERROR(LoadRequired("ncclRedOpDestroy", &api->RedOpDestroy));
  LoadOptional("ncclGetLastError", &api->GetLastError);
  LoadOptional("ncclCommSplit", &api->CommSplit);
  LoadOptional("ncclMemAlloc", &api->MemAlloc);
  LoadOptional("ncclMemFree", &api->MemFree);
  LoadOptional("ncclCommRegister", &api->CommRegister);
  LoadOptional("ncclCommDeregister", &api->CommDeregister);
  LoadOptional("ncclCommInitRankScalable", &api->CommInitRankScalable);
  return OkStatus();
}

Result<const NcclApi*> Load() {
  auto* const api = new NcclApi;
  const Status status = Fill(api);
  if (status.ok()) return api;
  const int version = api->version;
  delete api;
  if (version == 0) return status;
  return Status(status.code(), absl::StrCat(status.message(), "; it is ", NcclVersionText(version),
                                            ", 2.14 is needed"));
}

StatusCode CodeOf(ncclResult_t result) {
  switch (result) {
    case ncclSystemError:
    case ncclRemoteError:
      return StatusCode::kUnavailable;
    case ncclInvalidArgument:
      return StatusCode::kInvalidArgument;
    case ncclInvalidUsage:
      return StatusCode::kFailedPrecondition;
    default:
      return StatusCode::kInternal;
  }
}

}  // namespace

Result<const NcclApi*> LoadNcclApi() {
  static const auto* const api = new Result<const NcclApi*>(Load());
  return *api;
}

Status NcclStatus(const NcclApi& api, ncclResult_t result, ncclComm_t communicator,
                  absl::string_view what) {
  if (result == ncclSuccess) return OkStatus();
  std::string text = absl::StrCat(what, ": ", api.GetErrorString(result));
  const char* const last = api.GetLastError != nullptr ? api.GetLastError(communicator) : nullptr;
  if (last != nullptr && *last != '\0') absl::StrAppend(&text, ": ", last);
  text = absl::StrReplaceAll(text, {{"\n", " "}});
  absl::StripTrailingAsciiWhitespace(&text);
  return Status(CodeOf(result), text);
}

#endif  // CADRE_WITH_NCCL

Result<void*> NcclFunction(const char* name) {
  static const auto* const library =
      new Result<void*>(cuda::OpenVendorLibrary({"NCCL", "CADRE_NCCL_LIBRARY", {"libnccl.so.2"}}));
  if (!library->ok()) return library->status();
  void* const function = dlsym(**library, name);
  if (function != nullptr) return function;
  return NotFoundError(absl::StrCat("the NCCL that is installed has no ", name));
}

}  // namespace cadre::nccl
