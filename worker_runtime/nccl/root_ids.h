// The ids of a new communicator's roots: which ranks create them, and how all ranks get them and
// learn of ranks that cannot take part. Several roots let a large communicator form in parallel. It
// uses the worker's store, so it needs no GPU.
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

// The layout of roots is NCCL's: every root serves a run of consecutive ranks, and the first runs
// have one rank more if they cannot be equal. Pure.

// The ranks that connect through one root. Beyond that, ncclCommInitRankScalable gets several ids.
constexpr int kMaxRanksPerRoot = 128;

// Returns the number of roots for `size` ranks; 1 if NCCL does not support several.
int RootCount(int size, bool has_scalable_init);

// Returns true if `rank` is the first one of a root. 0 <= rank < size, 1 <= roots <= size.
bool RankHasRoot(int rank, int size, int roots);

// Returns the root that serves `rank`.
int RootOfRank(int rank, int size, int roots);

constexpr size_t kMaxNcclCommunicatorName = 100;
// A waiting rank checks this often whether another one has failed.
constexpr std::chrono::nanoseconds kFailureCheckInterval = std::chrono::seconds(1);

// One attempt of all ranks to form a communicator. It is used by one thread.
class Formation {
 public:
  // Every rank must call this equally often with the same name; the count distinguishes the
  // attempts. `worker` must outlive the result.
  static Result<Formation> Begin(Worker& worker, const std::string& name);

  // Tells the waiting ranks that this rank does not take part. Only the first report counts.
  void ReportFailure(const Status& status);
  // Returns OK, or UNAVAILABLE with the first failed rank's report. ABORTED: the generation is
  // over.
  Status CheckForFailure();

  // Each rank that has a root creates its id and publishes it. Returns all ids, in the order of the
  // roots, on every rank.
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
