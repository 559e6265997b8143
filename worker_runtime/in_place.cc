#include "cadre/in_place.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "cadre/connect.h"
#include "cadre/wait_or_abort.h"
#include "worker_runtime/backend/group.h"
#include "worker_runtime/progress/progress_page.h"

namespace cadre {
namespace {

// Aborts a communicator once the generation has ended. Shared with the thread that is notified of
// that.
class EndOfGeneration {
 public:
  void Happened() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    happened_ = true;
    if (communicator_ != nullptr) communicator_->Abort();
  }
  void Aborts(Communicator* communicator) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    communicator_ = communicator;
    if (happened_ && communicator != nullptr) communicator->Abort();
  }
  bool happened() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return happened_;
  }

 private:
  mutable absl::Mutex mutex_;
  bool happened_ ABSL_GUARDED_BY(mutex_) = false;
  Communicator* communicator_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

bool MayBeCausedByAnotherRank(const Status& status) {
  return status.code() == StatusCode::kAborted || status.code() == StatusCode::kUnavailable ||
         status.code() == StatusCode::kDeadlineExceeded || status.code() == StatusCode::kCancelled;
}

Status RunGeneration(Worker& worker, InPlaceState& state, const InPlaceOptions& options,
                     const std::function<Status(Worker&, Communicator&)>& train,
                     EndOfGeneration& end) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> communicator,
                   ConnectCommunicator(worker, options.communicator));
  end.Aborts(communicator.get());
  // Runs also if `train` throws.
  const auto forget = absl::MakeCleanup([&end] { end.Aborts(nullptr); });
  Status status = ShareState(*communicator, state, options.rejoin_timeout);
  if (status.ok()) status = train(worker, *communicator);
  // The others must not wait for a rank that fails.
  if (!status.ok()) communicator->Abort();
  return status;
}

}  // namespace

Status ShareState(Communicator& communicator, InPlaceState& state,
                  std::chrono::nanoseconds timeout) {
  int64_t mine = state.position();
  std::vector<int64_t> all(static_cast<size_t>(communicator.size()));
  RETURN_IF_ERROR(WaitOrAbort(communicator,
                              communicator.AllGather({&mine, 1, DataType::kInt64},
                                                     {all.data(), all.size(), DataType::kInt64}),
                              timeout));
  const auto furthest = std::max_element(all.begin(), all.end());
  if (*std::min_element(all.begin(), all.end()) == *furthest) return OkStatus();
  const int source = static_cast<int>(furthest - all.begin());
  std::string bytes;
  if (communicator.rank() == source) {
    Result<std::string> saved = state.Save();
    if (!saved.ok()) {
      communicator.Abort();
      return saved.status();
    }
    bytes = *std::move(saved);
  }
  ASSIGN_OR_RETURN(bytes, backend::BroadcastBytes(communicator, std::move(bytes), source,
                                                  std::numeric_limits<int64_t>::max(), timeout));
  return mine == *furthest ? OkStatus() : state.Load(bytes);
}

Status TrainInPlace(Worker& worker, InPlaceState& state, const InPlaceOptions& options,
                    const std::function<Status(Worker&, Communicator&)>& train) {
  Worker* current = &worker;
  std::unique_ptr<Worker> rejoined;
  for (;;) {
    const auto end = std::make_shared<EndOfGeneration>();
    if (current->in_place()) {
      RETURN_IF_ERROR(current->AnnounceRejoin([end] { end->Happened(); }));
    }
    const Status status = RunGeneration(*current, state, options, train, *end);
    if (status.ok() || !current->in_place()) return status;
    if (!end->happened() && !MayBeCausedByAnotherRank(status)) return status;
    Result<std::unique_ptr<Worker>> next =
        current->Rejoin(status.message(), options.rejoin_timeout);
    if (!next.ok()) {
      return Status(status.code(),
                    absl::StrCat(status.message(), "; cannot rejoin: ", next.status().message()));
    }
    rejoined = *std::move(next);
    current = rejoined.get();
    const WorkerPlace& place = current->place();
    progress::ProgressPage::MoveThisWorker({place.generation, place.rank, place.world_size});
  }
}

}  // namespace cadre
