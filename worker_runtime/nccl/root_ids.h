// How the ranks of a new communicator come by the ids of its roots, and hear of one that cannot
// take part. Goes through the worker's store, so it needs no GPU.
#ifndef CADRE_WORKER_RUNTIME_NCCL_ROOT_IDS_H_
#define CADRE_WORKER_RUNTIME_NCCL_ROOT_IDS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/time.h"
#include "worker_runtime/worker.h"

namespace cadre::nccl {

constexpr size_t kMaxNcclCommunicatorName = 100;
// How long a rank waits before it looks whether another one has failed.
constexpr absl::Duration kFailureLookInterval = absl::Seconds(1);

// One attempt of all ranks to form a communicator. Belongs to one thread.
class Formation {
 public:
  // Every rank calls it the same number of times with the same name; the count keeps attempts
  // apart. `worker` must outlive it.
  static absl::StatusOr<Formation> Begin(Worker& worker, const std::string& name);

  // Tells the others, who are waiting for this rank, that it does not come. The first one is heard.
  void ReportFailure(const absl::Status& status);
  // OK, or UNAVAILABLE with what the first rank that failed said. ABORTED: the generation is over.
  absl::Status LookForFailure();

  // Each rank that has a root mints its id and publishes it; all get all, in the order of the
  // roots.
  absl::StatusOr<std::vector<std::string>> ShareIds(int roots, MonoTime deadline);

 private:
  Formation(Worker* worker, std::string prefix) : worker_(worker), prefix_(std::move(prefix)) {}

  absl::StatusOr<std::string> AwaitId(const std::string& key, MonoTime deadline);
  std::string IdKey(int root) const;
  std::string FailureKey() const;

  Worker* worker_;
  std::string prefix_;
};

}  // namespace cadre::nccl

#endif  // CADRE_WORKER_RUNTIME_NCCL_ROOT_IDS_H_
