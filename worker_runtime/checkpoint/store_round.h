// One exchange of all ranks by the store: rank 0 says what to do, each does it and says what came
// of it, and rank 0 says what came of all. Unlike a collective it needs no communicator, so a
// thread beside the training may take part.
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

// Used by one thread. The rounds of one prefix are counted from 1 on, alike on all ranks, and a
// rank takes part in one when it has left the one before.
class StoreRound {
 public:
  // All calls are over by `deadline`. `worker` must outlive this.
  StoreRound(Worker& worker, std::string prefix, int64_t number, MonoTime deadline);

  // Rank 0's, in this order, of which Collect() may be left out where the order was an error.
  // Collect() has a status for each rank, rank 0's OK: DEADLINE_EXCEEDED where one did not come.
  Status Order(const Result<std::string>& order);
  Result<std::vector<Status>> Collect();
  Status Conclude(const Result<std::string>& outcome);

  // The others', in this order. An error that was rank 0's order is also the round's outcome.
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
