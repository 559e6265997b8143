// A worker of a job that recovers in place, for tests: Rejoin() returns its worker in the next
// generation, if there is one.
#ifndef CADRE_WORKER_RUNTIME_TESTING_REJOINING_WORKER_H_
#define CADRE_WORKER_RUNTIME_TESTING_REJOINING_WORKER_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "cadre/result.h"
#include "cadre/worker.h"
#include "worker_runtime/store/group_worker.h"

namespace cadre::testing {

class RejoiningWorker : public store::GroupWorker {
 public:
  // Both workers must outlive this object. A null `next` means that this process is not kept.
  RejoiningWorker(Worker& here, Worker* next)
      : store::GroupWorker(&here, "in_place", here.place()), next_(next) {}

  bool in_place() const override { return true; }
  Status AnnounceRejoin(std::function<void()> on_end) override {
    absl::MutexLock lock(&mutex_);
    on_end_ = std::move(on_end);
    return OkStatus();
  }
  Result<std::unique_ptr<Worker>> Rejoin(std::string_view, std::chrono::nanoseconds) override {
    if (next_ == nullptr) return AbortedError("this process is not kept");
    return std::unique_ptr<Worker>(std::make_unique<RejoiningWorker>(*next_, nullptr));
  }

  void EndGeneration() {
    absl::MutexLock lock(&mutex_);
    on_end_();
  }

 private:
  Worker* const next_;
  absl::Mutex mutex_;
  std::function<void()> on_end_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre::testing

#endif  // CADRE_WORKER_RUNTIME_TESTING_REJOINING_WORKER_H_
