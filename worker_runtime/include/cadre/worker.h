// This process's place among the workers of its generation, and the store that they share.
//
//   CADRE_ASSIGN_OR_RETURN(auto worker, cadre::Worker::Connect());
//   if (worker->rank() == 0) CADRE_RETURN_IF_ERROR(worker->Set("model", path));
//   CADRE_RETURN_IF_ERROR(worker->Barrier("loaded", std::chrono::minutes(1)));
//
// A program that only needs a communicator uses Connect() of connect.h.
#ifndef CADRE_WORKER_H_
#define CADRE_WORKER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "cadre/result.h"
#include "cadre/status.h"

namespace cadre {

// The place of this worker in its generation. Ranks are contiguous per node.
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

// For a program that knows its rank from another source than the environment.
struct WorkerOptions {
  int rank = -1;
  int world_size = 0;
  // The "HOST:PORT" at which rank 0 listens for the others, the same for all ranks: "node1:29500",
  // "10.0.0.1:29500", "[fd00::1]:29500". The port must not be used by anything else.
  std::string address;
  // Limits the wait for all ranks to connect.
  std::chrono::nanoseconds timeout = std::chrono::minutes(5);
};

// Thread safe. Calls that take a timeout wait at most that long; other calls to the store (Set,
// Add, CompareAndSet, Delete, PublishCommunicatorId) wait at most a minute for its answer. Keys,
// values and ids live as long as the generation. Any of them may fail with
//   ABORTED             the generation has moved on: rejoin, or exit, and Cadre starts the next one
//   DEADLINE_EXCEEDED   naming the missing ranks where they are known
//   UNAVAILABLE         the store cannot be reached
//   INVALID_ARGUMENT    a key that is empty, has more than 256 bytes or is not UTF-8, a value of
//                       more than 64 KiB
//   RESOURCE_EXHAUSTED  the store is full
class Worker {
 public:
  // Connects as the environment describes, depending on the launcher that set it:
  // - Cadre: connects to its node's agent. A process that was started as a standby
  //   (docs/training_in_cpp.md) waits here until it gets a place.
  // - torchrun, Open MPI's mpirun, srun, or the user, by RANK, WORLD_SIZE, MASTER_ADDR and
  //   MASTER_PORT: rank 0 serves the store from within its process, and all ranks wait for each
  //   other, five minutes at most. Between machines the ranks need CADRE_SECRET_FILE, the name of
  //   a file with the same content on all of them ("cadre token new FILE" makes one); without it
  //   rank 0 listens on loopback only, for processes of the same user.
  // In addition to the errors above:
  //   FAILED_PRECONDITION  this process was given no rank, or a variable or the secret is missing;
  //                        this program and its agent are of different versions; this rank has
  //                        called it before (Cadre's agent serves both calls)
  //   INVALID_ARGUMENT     variables make no sense, contradict each other, or are not the same for
  //                        all ranks; ranks of one node are not contiguous
  //   PERMISSION_DENIED    rank 0 has another secret; the secret file is readable by other users
  //   NOT_FOUND            the secret file does not exist
  static Result<std::unique_ptr<Worker>> Connect();
  // Connects as the options say; the environment is ignored. The rest of the place, such as node
  // ranks, is determined while connecting.
  static Result<std::unique_ptr<Worker>> Connect(const WorkerOptions& options);

  virtual ~Worker() = default;

  virtual const WorkerPlace& place() const = 0;
  int rank() const { return place().rank; }
  int world_size() const { return place().world_size; }

  virtual Status Set(std::string_view key, std::string_view value) = 0;
  // Waits until the key exists; with a timeout of 0, NOT_FOUND if it does not.
  virtual Result<std::string> Get(std::string_view key, std::chrono::nanoseconds timeout) = 0;
  // Returns the new sum; a missing key counts as 0. FAILED_PRECONDITION: the key's value is not a
  // number.
  virtual Result<int64_t> Add(std::string_view key, int64_t delta) = 0;
  // Sets the key to `desired` if its value is `expected`. Returns the key's value afterwards, or
  // FAILED_PRECONDITION if that is not `desired`.
  virtual Result<std::string> CompareAndSet(std::string_view key, std::string_view expected,
                                            std::string_view desired) = 0;
  virtual Status Delete(std::string_view key) = 0;
  // Waits until all ranks of the world have called it the same number of times with that name.
  virtual Status Barrier(std::string_view name, std::chrono::nanoseconds timeout) = 0;
  virtual Status PublishCommunicatorId(std::string_view communicator, std::string_view id) = 0;
  virtual Result<std::string> CommunicatorId(std::string_view communicator,
                                             std::chrono::nanoseconds timeout) = 0;

  // Whether more nodes wait for the next generation, as far as this process knows; CheckpointWanted
  // in checkpoint.h gives the same answer on all ranks.
  virtual bool MoreNodesWait() const { return false; }

  // Whether the job recovers in place, so that this process may rejoin. TrainInPlace() (in_place.h)
  // uses this and the two below.
  virtual bool in_place() const { return false; }
  // Tells the agent that this process can rejoin, for as long as this object lives. `on_end` is
  // called at most once, on another thread, when the generation has ended. May be called once.
  // FAILED_PRECONDITION: not in_place().
  virtual Status AnnounceRejoin(std::function<void()> on_end);
  // Leaves the generation because of `reason`, ending it if it has not ended yet, and waits for
  // this process's place in the next one. ABORTED: this process is not kept.
  virtual Result<std::unique_ptr<Worker>> Rejoin(std::string_view reason,
                                                 std::chrono::nanoseconds timeout);

  // Reports training progress to the launcher, through CADRE_PROGRESS_FD; never blocks, never
  // fails.
  virtual void ReportProgress(int64_t step, double samples_per_second, double loss) = 0;
};

}  // namespace cadre

#endif  // CADRE_WORKER_H_
