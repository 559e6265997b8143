// Who this process is, and what it shares with the other workers of its generation.
//
//   auto worker = cadre::Worker::Connect();
//   if (!worker.ok()) { ... }
//   (*worker)->rank(), (*worker)->world_size(), (*worker)->Barrier("loaded", absl::Minutes(1));
#ifndef CADRE_WORKER_RUNTIME_WORKER_H_
#define CADRE_WORKER_RUNTIME_WORKER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace cadre {

// Where this worker stands. Ranks are contiguous per node.
struct WorkerPlace {
  std::string job;
  uint64_t generation = 0;
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int node_rank = 0;
  int nodes = 1;
  int restart_count = 0;
  std::string address = "127.0.0.1";
};

// Thread safe. All waits take a timeout; errors are those of proto/store.proto:
//   ABORTED            the generation has moved on: rejoin, or exit, and Cadre starts the next one
//   DEADLINE_EXCEEDED  naming who is missing where that is known
//   UNAVAILABLE        the agent cannot be reached
class Worker {
 public:
  // Reads CADRE_AGENT, CADRE_TOKEN_FILE, CADRE_GENERATION, RANK from the environment and says hello
  // to the agent. A process that was started to stand by (docs/training_in_cpp.md) waits here until
  // it gets a place. One that Open MPI's mpirun started, without Cadre between, waits until all
  // ranks are here (docs/from_mpirun.md). FAILED_PRECONDITION: started by none of them.
  static absl::StatusOr<std::unique_ptr<Worker>> Connect();

  virtual ~Worker() = default;

  virtual const WorkerPlace& place() const = 0;
  int rank() const { return place().rank; }
  int world_size() const { return place().world_size; }

  virtual absl::Status Set(absl::string_view key, absl::string_view value) = 0;
  virtual absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) = 0;
  virtual absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta) = 0;
  // What the key holds afterwards; FAILED_PRECONDITION when that is not `desired`.
  virtual absl::StatusOr<std::string> CompareAndSet(absl::string_view key,
                                                    absl::string_view expected,
                                                    absl::string_view desired) = 0;
  virtual absl::Status Delete(absl::string_view key) = 0;
  // All ranks of the world.
  virtual absl::Status Barrier(absl::string_view name, absl::Duration timeout) = 0;
  virtual absl::Status PublishCommunicatorId(absl::string_view communicator,
                                             absl::string_view id) = 0;
  virtual absl::StatusOr<std::string> CommunicatorId(absl::string_view communicator,
                                                     absl::Duration timeout) = 0;

  // More nodes wait for the next generation, as far as this process knows: see CheckpointWanted in
  // checkpoint.h, which all ranks answer alike.
  virtual bool MoreNodesWait() const { return false; }

  // The job recovers in place: this process may rejoin. TrainInPlace() (in_place.h) uses these.
  virtual bool in_place() const { return false; }
  // Says that it can, for as long as this object lives. `on_end` is called at most once, on another
  // thread, when the generation has ended. Once. FAILED_PRECONDITION: not in_place().
  virtual absl::Status AnnounceRejoin(std::function<void()> on_end);
  // Gives the generation up, on account of `reason`, and waits for this process's place in the next
  // one. Where nobody else ends the generation, this does. ABORTED: this process is not kept.
  virtual absl::StatusOr<std::unique_ptr<Worker>> Rejoin(absl::string_view reason,
                                                         absl::Duration timeout);

  // Tells the launcher how far this worker is, through CADRE_PROGRESS_FD; never blocks, never
  // fails.
  virtual void ReportProgress(int64_t step, double samples_per_second, double loss) = 0;
};

}  // namespace cadre

#endif  // CADRE_WORKER_RUNTIME_WORKER_H_
