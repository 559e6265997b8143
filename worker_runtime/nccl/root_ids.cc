#include "worker_runtime/nccl/root_ids.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "cadre/nccl/unique_id.h"

namespace cadre::nccl {
namespace {

// Long enough for an answer from this node's agent.
constexpr std::chrono::nanoseconds kStoreAnswerTimeout = std::chrono::milliseconds(1);
constexpr size_t kMaxFailureText = 1024;

}  // namespace

Result<Formation> Formation::Begin(Worker& worker, const std::string& name) {
  if (name.empty() || name.size() > kMaxNcclCommunicatorName) {
    return InvalidArgumentError(absl::StrCat("a communicator's name must have 1 to ",
                                             kMaxNcclCommunicatorName, " bytes, not ",
                                             name.size()));
  }
  ASSIGN_OR_RETURN(const int64_t opened,
                   worker.Add(absl::StrCat("nccl/", name, "/opened/", worker.rank()), 1));
  return Formation(&worker, absl::StrCat("nccl/", name, "/", opened));
}

std::string Formation::IdKey(int root) const { return absl::StrCat(prefix_, "/root/", root); }
std::string Formation::FailureKey() const { return absl::StrCat(prefix_, "/failed"); }

void Formation::ReportFailure(const Status& status) {
  const std::string text =
      absl::StrCat("rank ", worker_->rank(), ": ", status.message()).substr(0, kMaxFailureText);
  // Errors are ignored: another rank may have reported first, or the store may be gone.
  worker_->CompareAndSet(FailureKey(), "", text).status().IgnoreError();
}

Status Formation::CheckForFailure() {
  const Result<std::string> failure = worker_->Get(FailureKey(), kStoreAnswerTimeout);
  if (failure.ok()) return UnavailableError(*failure);
  return failure.status().code() == StatusCode::kAborted ? failure.status() : OkStatus();
}

Result<std::string> Formation::AwaitId(const std::string& key, MonoTime deadline) {
  while (true) {
    const std::chrono::nanoseconds left = absl::ToChronoNanoseconds(deadline - MonoNow());
    Result<std::string> id = worker_->CommunicatorId(key, std::min(left, kFailureCheckInterval));
    if (id.ok()) {
      if (id->size() == kNcclUniqueIdBytes) return id;
      return InternalError(
          absl::StrCat("\"", key, "\" is an id of ", id->size(), " bytes, not NCCL's"));
    }
    if (id.status().code() != StatusCode::kDeadlineExceeded &&
        id.status().code() != StatusCode::kNotFound)
      return id;
    RETURN_IF_ERROR(CheckForFailure());
    if (MonoNow() >= deadline) return DeadlineExceededError(id.status().message());
  }
}

Result<std::vector<std::string>> Formation::ShareIds(int roots, MonoTime deadline) {
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

int RootCount(int size, bool has_scalable_init) {
  if (!has_scalable_init || size <= kMaxRanksPerRoot) return 1;
  return (size + kMaxRanksPerRoot - 1) / kMaxRanksPerRoot;
}

bool RankHasRoot(int rank, int size, int roots) {
  const int larger = size % roots;
  const int per_root = size / roots;
  const int limit = larger * (per_root + 1);
  if (rank < limit) return rank % (per_root + 1) == 0;
  return (rank - limit) % per_root == 0;
}

int RootOfRank(int rank, int size, int roots) {
  const int larger = size % roots;
  const int per_root = size / roots;
  const int limit = larger * (per_root + 1);
  if (rank < limit) return rank / (per_root + 1);
  return larger + (rank - limit) / per_root;
}

}  // namespace cadre::nccl
