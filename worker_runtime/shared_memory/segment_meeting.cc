#include "worker_runtime/shared_memory/segment_meeting.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "cadre/status.h"
#include "worker_runtime/shared_memory/segment.h"

namespace cadre::shared_memory {

Result<MappedSegments> MapSegments(Worker& worker, const std::string& name, size_t bytes,
                                   std::chrono::nanoseconds timeout) {
  const WorkerPlace& place = worker.place();
  const MonoTime deadline = MonoNow() + timeout;
  // Asked without any time to wait, the store would say that there is no such key, and not that
  // the time is over.
  const auto left = [&] {
    return absl::ToChronoNanoseconds(std::max(deadline - MonoNow(), absl::Milliseconds(1)));
  };
  const std::string what = absl::StrCat("shared_memory/", name, "/");
  ASSIGN_OR_RETURN(const int64_t opened, worker.Add(absl::StrCat(what, "opened/", place.rank), 1));
  const std::string prefix = absl::StrCat(what, opened, "/");
  ASSIGN_OR_RETURN(std::unique_ptr<SharedSegment> own, SharedSegment::Create(bytes));
  RETURN_IF_ERROR(worker.Set(absl::StrCat(prefix, place.rank), own->address()));
  MappedSegments mapped;
  for (int peer = 0; peer < place.world_size; ++peer) {
    const Result<std::string> found = worker.Get(absl::StrCat(prefix, peer), left());
    if (found.status().code() == StatusCode::kDeadlineExceeded) {
      return DeadlineExceededError(
          absl::StrCat("connecting communicator \"", name, "\": rank ", peer,
                       " did not come within ", absl::FormatDuration(absl::FromChrono(timeout)),
                       "; all ranks connect communicators of the same names, each as often"));
    }
    ASSIGN_OR_RETURN(const std::string address, found);
    const std::vector<absl::string_view> parts = absl::StrSplit(address, ' ');
    pid_t pid = 0;
    if (!absl::SimpleAtoi(parts[0], &pid)) {
      return InternalError(absl::StrCat("'", address, "' is no segment's address"));
    }
    mapped.pids.push_back(pid);
    if (peer == place.rank) {
      mapped.segments.push_back(nullptr);
      continue;
    }
    ASSIGN_OR_RETURN(std::unique_ptr<SharedSegment> segment, SharedSegment::Open(address));
    mapped.segments.push_back(std::move(segment));
  }
  RETURN_IF_ERROR(worker.Barrier(absl::StrCat(prefix, "mapped"), left()));
  own->CloseDescriptor();
  mapped.segments[place.rank] = std::move(own);
  return mapped;
}

}  // namespace cadre::shared_memory
