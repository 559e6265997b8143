// A part of the world as a world of its own: for backends that join only some ranks.
#ifndef CADRE_WORKER_RUNTIME_STORE_GROUP_WORKER_H_
#define CADRE_WORKER_RUNTIME_STORE_GROUP_WORKER_H_

#include <string>

#include "worker_runtime/worker.h"

namespace cadre::store {

// Thread safe, as the worker is. Keys and barriers are the group's own.
class GroupWorker : public Worker {
 public:
  // `worker` must outlive this. `name` is the same for all of one group, and no other group's.
  // `place` is this rank's within the group.
  GroupWorker(Worker* worker, std::string name, const WorkerPlace& place);

  const WorkerPlace& place() const override { return place_; }
  absl::Status Set(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) override;
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta) override;
  absl::StatusOr<std::string> CompareAndSet(absl::string_view key, absl::string_view expected,
                                            absl::string_view desired) override;
  absl::Status Delete(absl::string_view key) override;
  absl::Status Barrier(absl::string_view name, absl::Duration timeout) override;
  absl::Status PublishCommunicatorId(absl::string_view communicator, absl::string_view id) override;
  absl::StatusOr<std::string> CommunicatorId(absl::string_view communicator,
                                             absl::Duration timeout) override;
  void ReportProgress(int64_t step, double samples_per_second, double loss) override;

 private:
  std::string Key(absl::string_view key) const;

  Worker& worker_;
  const std::string name_;
  const WorkerPlace place_;
};

}  // namespace cadre::store

#endif  // CADRE_WORKER_RUNTIME_STORE_GROUP_WORKER_H_
