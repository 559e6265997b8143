#include "worker_runtime/nccl/root_ids.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "worker_runtime/nccl/root_plan.h"
#include "worker_runtime/nccl/unique_id.h"

namespace cadre::nccl {
namespace {

// Long enough for an answer from this node's agent.
constexpr absl::Duration kLook = absl::Milliseconds(1);
constexpr size_t kMaxFailureText = 1024;

}  // namespace

absl::StatusOr<Formation> Formation::Begin(Worker& worker, const std::string& name) {
  if (name.empty() || name.size() > kMaxNcclCommunicatorName) {
    return absl::InvalidArgumentError(absl::StrCat("a communicator's name must have 1 to ",
                                                   kMaxNcclCommunicatorName, " bytes, not ",
                                                   name.size()));
  }
  ASSIGN_OR_RETURN(const int64_t opened,
                   worker.Add(absl::StrCat("nccl/", name, "/opened/", worker.rank()), 1));
  return Formation(&worker, absl::StrCat("nccl/", name, "/", opened));
}

std::string Formation::IdKey(int root) const { return absl::StrCat(prefix_, "/root/", root); }
std::string Formation::FailureKey() const { return absl::StrCat(prefix_, "/failed"); }

void Formation::ReportFailure(const absl::Status& status) {
  const std::string text =
      absl::StrCat("rank ", worker_->rank(), ": ", status.message()).substr(0, kMaxFailureText);
  // Another rank may have been first, and the store may be gone: then there is nobody to tell.
  worker_->CompareAndSet(FailureKey(), "", text).status().IgnoreError();
}

absl::Status Formation::LookForFailure() {
  const absl::StatusOr<std::string> failure = worker_->Get(FailureKey(), kLook);
  if (failure.ok()) return absl::UnavailableError(*failure);
  return absl::IsAborted(failure.status()) ? failure.status() : absl::OkStatus();
}

absl::StatusOr<std::string> Formation::AwaitId(const std::string& key, MonoTime deadline) {
  while (true) {
    const absl::Duration left = std::max(deadline - MonoNow(), absl::ZeroDuration());
    absl::StatusOr<std::string> id =
        worker_->CommunicatorId(key, std::min(left, kFailureLookInterval));
    if (id.ok()) {
      if (id->size() == kNcclUniqueIdBytes) return id;
      return absl::InternalError(
          absl::StrCat("\"", key, "\" is an id of ", id->size(), " bytes, not NCCL's"));
    }
    if (!absl::IsDeadlineExceeded(id.status()) && !absl::IsNotFound(id.status())) return id;
    RETURN_IF_ERROR(LookForFailure());
    if (MonoNow() >= deadline) return absl::DeadlineExceededError(id.status().message());
  }
}

absl::StatusOr<std::vector<std::string>> Formation::ShareIds(int roots, MonoTime deadline) {
  const int rank = worker_->rank(), size = worker_->world_size();
  std::vector<std::string> ids(roots);
  const int own = RankHasRoot(rank, size, roots) ? RootOfRank(rank, size, roots) : -1;
  if (own >= 0) {
    ASSIGN_OR_RETURN(ids[own], MintNcclUniqueId());
    RETURN_IF_ERROR(worker_->PublishCommunicatorId(IdKey(own), ids[own]));
  }
  for (int root = 0; root < roots; ++root) {
    if (root == own) continue;
    ASSIGN_OR_RETURN(ids[root], AwaitId(IdKey(root), deadline));
  }
  return ids;
}

}  // namespace cadre::nccl
