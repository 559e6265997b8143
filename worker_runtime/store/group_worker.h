// Presents some ranks of the world as a world of their own, for backends that connect only these.
#ifndef CADRE_WORKER_RUNTIME_STORE_GROUP_WORKER_H_
#define CADRE_WORKER_RUNTIME_STORE_GROUP_WORKER_H_

#include <chrono>
#include <string>
#include <string_view>

#include "cadre/worker.h"

namespace cadre::store {

// Thread safe, like the worker. Keys and barriers belong to the group.
class GroupWorker : public Worker {
 public:
  // `worker` must outlive this. `name` is the same for all ranks of the group, and unique among
  // groups. `place` is this rank's within the group.
  GroupWorker(Worker* worker, std::string name, const WorkerPlace& place);

  const WorkerPlace& place() const override { return place_; }
  Status Set(std::string_view key, std::string_view value) override;
  Result<std::string> Get(std::string_view key, std::chrono::nanoseconds timeout) override;
  Result<int64_t> Add(std::string_view key, int64_t delta) override;
  Result<std::string> CompareAndSet(std::string_view key, std::string_view expected,
                                    std::string_view desired) override;
  Status Delete(std::string_view key) override;
  Status Barrier(std::string_view name, std::chrono::nanoseconds timeout) override;
  Status PublishCommunicatorId(std::string_view communicator, std::string_view id) override;
  Result<std::string> CommunicatorId(std::string_view communicator,
                                     std::chrono::nanoseconds timeout) override;
  void ReportProgress(int64_t step, double samples_per_second, double loss) override;

 private:
  std::string Key(std::string_view key) const;

  Worker& worker_;
  const std::string name_;
  const WorkerPlace place_;
};

}  // namespace cadre::store

#endif  // CADRE_WORKER_RUNTIME_STORE_GROUP_WORKER_H_
