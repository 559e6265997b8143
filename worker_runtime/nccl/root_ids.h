// How the ranks of a new communicator come by the ids of its roots, and hear of one that cannot
// take part. Goes through the worker's store, so it needs no GPU.
#ifndef CADRE_WORKER_RUNTIME_NCCL_ROOT_IDS_H_
#define CADRE_WORKER_RUNTIME_NCCL_ROOT_IDS_H_

#include <chrono>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/time.h"
#include "cadre/result.h"
#include "cadre/status.h"
#include "cadre/worker.h"

namespace cadre::nccl {

constexpr size_t kMaxNcclCommunicatorName = 100;
// How long a rank waits before it looks whether another one has failed.
constexpr std::chrono::nanoseconds kFailureLookInterval = std::chrono::seconds(1);

// One attempt of all ranks to form a communicator. Belongs to one thread.
class Formation {
 public:
  // Every rank calls it the same number of times with the same name; the count keeps attempts
  // apart. `worker` must outlive it.
  static Result<Formation> Begin(Worker& worker, const std::string& name);

  // Tells the others, who are waiting for this rank, that it does not come. The first one is heard.
  void ReportFailure(const Status& status);
  // OK, or UNAVAILABLE with what the first rank that failed said. ABORTED: the generation is over.
  Status LookForFailure();

  // Each rank that has a root mints its id and publishes it; all get all, in the order of the
  // roots.
  Result<std::vector<std::string>> ShareIds(int roots, MonoTime deadline);

 private:
  Formation(Worker* worker, std::string prefix) : worker_(worker), prefix_(std::move(prefix)) {}

  Result<std::string> AwaitId(const std::string& key, MonoTime deadline);
  std::string IdKey(int root) const;
  std::string FailureKey() const;

  Worker* worker_;
  std::string prefix_;
};

}  // namespace cadre::nccl

#endif  // CADRE_WORKER_RUNTIME_NCCL_ROOT_IDS_H_
