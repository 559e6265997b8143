#include "worker_runtime/backend/broadcast_bytes.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "cadre/wait_or_abort.h"

namespace cadre::backend {
namespace {

// A backend may have a buffer of its own for one broadcast.
constexpr size_t kChunkBytes = size_t{64} << 20;

}  // namespace

Result<std::string> BroadcastBytes(Communicator& communicator, std::string bytes, int root,
                                   int64_t most, std::chrono::nanoseconds timeout) {
  auto size = static_cast<int64_t>(bytes.size());
  RETURN_IF_ERROR(WaitOrAbort(communicator,
                              communicator.Broadcast({&size, 1, DataType::kInt64}, root), timeout));
  if (size < 0 || size > most) {
    return DataLossError(absl::StrCat("rank ", root, " announced ", size, " bytes; at most ", most,
                                      " are accepted"));
  }
  bytes.resize(static_cast<size_t>(size));
  for (size_t at = 0; at < bytes.size(); at += kChunkBytes) {
    const Buffer chunk = {&bytes[at], std::min(kChunkBytes, bytes.size() - at), DataType::kUint8};
    RETURN_IF_ERROR(WaitOrAbort(communicator, communicator.Broadcast(chunk, root), timeout));
  }
  return bytes;
}

}  // namespace cadre::backend
