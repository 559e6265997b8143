#include "cadre/nccl/unique_id.h"

#include <chrono>
#include <string_view>
#include <utility>

#ifdef CADRE_HAVE_NCCL_HEADERS
#include <nccl.h>
#endif

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "worker_runtime/absl_types.h"
#include "worker_runtime/nccl/nccl_api.h"

namespace cadre::nccl {
namespace {

// Published instead of the id, so that the other ranks do not wait for it: "no id: CODE MESSAGE".
// An id is exactly kNcclUniqueIdBytes long; this text is made to have another length.
constexpr char kRefusal[] = "no id: ";

std::string Refusal(const Status& status) {
  std::string text = absl::StrCat(kRefusal, static_cast<int>(status.code()), " ", status.message());
  if (text.size() == kNcclUniqueIdBytes) text.push_back(' ');
  return text;
}

Result<std::string> ParsePublished(std::string_view communicator, std::string published) {
  if (published.size() == kNcclUniqueIdBytes) return published;
  absl::string_view text = published;
  int code = 0;
  const size_t code_end = text.find(' ', sizeof(kRefusal) - 1);
  if (!absl::ConsumePrefix(&text, kRefusal) || code_end == absl::string_view::npos ||
      !absl::SimpleAtoi(text.substr(0, text.find(' ')), &code)) {
    return InternalError(absl::StrCat("communicator \"", ToAbsl(communicator), "\" has an id of ",
                                      published.size(), " bytes, not NCCL's ", kNcclUniqueIdBytes));
  }
  return Status(static_cast<StatusCode>(code),
                absl::StrCat("rank 0: ", absl::string_view(published).substr(code_end + 1)));
}

}  // namespace

#ifdef CADRE_HAVE_NCCL_HEADERS

static_assert(sizeof(ncclUniqueId) == kNcclUniqueIdBytes, "another NCCL than we know");

Result<std::string> MintNcclUniqueId() {
  ASSIGN_OR_RETURN(void* const mint, NcclFunction("ncclGetUniqueId"));
  ASSIGN_OR_RETURN(void* const explain, NcclFunction("ncclGetErrorString"));
  ncclUniqueId id;
  const ncclResult_t result = reinterpret_cast<decltype(&ncclGetUniqueId)>(mint)(&id);
  if (result != ncclSuccess) {
    return UnavailableError(absl::StrCat(
        "ncclGetUniqueId: ", reinterpret_cast<decltype(&ncclGetErrorString)>(explain)(result),
        "; NCCL_DEBUG=WARN prints more, NCCL_SOCKET_IFNAME names the interface"));
  }
  return std::string(id.internal, sizeof(id.internal));
}

#else

Result<std::string> MintNcclUniqueId() {
  return UnimplementedError("this program was built without NCCL's header nccl.h");
}

#endif

Result<std::string> ShareNcclUniqueId(Worker& worker, std::string_view communicator,
                                      std::chrono::nanoseconds timeout) {
  if (worker.rank() == 0) {
    const Result<std::string> id = MintNcclUniqueId();
    std::string published = id.ok() ? *id : Refusal(id.status());
    RETURN_IF_ERROR(worker.PublishCommunicatorId(communicator, published));
    return ParsePublished(communicator, std::move(published));
  }
  ASSIGN_OR_RETURN(std::string published, worker.CommunicatorId(communicator, timeout));
  return ParsePublished(communicator, std::move(published));
}

}  // namespace cadre::nccl
