// One exchange between all ranks through the store: rank 0 publishes an order, each rank executes
// it and reports the result, and rank 0 publishes the overall outcome. Unlike a collective it needs
// no communicator, so a thread beside the training can take part.
#ifndef CADRE_WORKER_RUNTIME_CHECKPOINT_STORE_ROUND_H_
#define CADRE_WORKER_RUNTIME_CHECKPOINT_STORE_ROUND_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/time.h"
#include "cadre/result.h"
#include "cadre/status.h"
#include "cadre/worker.h"

namespace cadre::checkpoint {

// Encodes the result of a rank's part of an operation as a value in the store, for other ranks.
// Pure.

// A text of more than 16 KiB is cut.
std::string EncodeOutcome(const Result<std::string>& outcome);
// An error's text is prefixed with `who`.
Result<std::string> DecodeOutcome(absl::string_view encoded, absl::string_view who);

// Used by one thread. Rounds with one prefix are numbered from 1, equally on all ranks. A rank
// enters a round only after it has left the previous one.
class StoreRound {
 public:
  // All calls end by `deadline`. `worker` must outlive this object.
  StoreRound(Worker& worker, std::string prefix, int64_t number, MonoTime deadline);

  // Rank 0 calls these one after the other; it may omit Collect() if it passed an error to Order().
  // Collect() returns a status for each rank (OK for rank 0), DEADLINE_EXCEEDED for one that did
  // not report.
  Status Order(const Result<std::string>& order);
  Result<std::vector<Status>> Collect();
  Status Conclude(const Result<std::string>& outcome);

  // The other ranks call these one after the other. If AwaitOrder() returns an error, it is also
  // the outcome.
  Result<std::string> AwaitOrder();
  Status Report(const Status& status);
  Result<std::string> AwaitOutcome();

 private:
  std::string Key(int64_t number, absl::string_view what) const;
  Result<std::string> Get(absl::string_view what);

  Worker& worker_;
  const std::string prefix_;
  const int64_t number_;
  const MonoTime deadline_;
};

}  // namespace cadre::checkpoint

#endif  // CADRE_WORKER_RUNTIME_CHECKPOINT_STORE_ROUND_H_
