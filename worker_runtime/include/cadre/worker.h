// Who this process is, and what it shares with the other workers of its generation.
//
//   CADRE_ASSIGN_OR_RETURN(auto worker, cadre::Worker::Connect());
//   if (worker->rank() == 0) CADRE_RETURN_IF_ERROR(worker->Set("model", path));
//   CADRE_RETURN_IF_ERROR(worker->Barrier("loaded", std::chrono::minutes(1)));
//
// A program that only needs a communicator takes Connect() of connect.h.
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

// For a program that knows its rank from elsewhere.
struct WorkerOptions {
  int rank = -1;
  int world_size = 0;
  // "HOST:PORT" at which rank 0 listens for the others, the same for all ranks: "node1:29500",
  // "10.0.0.1:29500", "[fd00::1]:29500". A port that nothing else uses.
  std::string address;
  // For all ranks to come.
  std::chrono::nanoseconds timeout = std::chrono::minutes(5);
};

// Thread safe. Calls that take a timeout wait that long at most; others that ask the store (Set,
// Add, CompareAndSet, Delete, PublishCommunicatorId) wait for its answer, a minute at most. Keys,
// values and ids live as long as the generation. Any of them may fail with
//   ABORTED             the generation has moved on: rejoin, or exit, and Cadre starts the next one
//   DEADLINE_EXCEEDED   naming who is missing where that is known
//   UNAVAILABLE         the store cannot be reached
//   INVALID_ARGUMENT    a key that is empty, has more than 256 bytes or is not UTF-8, a value of
//                       more than 64 KiB
//   RESOURCE_EXHAUSTED  the store is full
class Worker {
 public:
  // By what the environment says of who started this process:
  // - Cadre: says hello to its node's agent. A process that was started to stand by
  //   (docs/training_in_cpp.md) waits here until it gets a place.
  // - torchrun, Open MPI's mpirun, srun, or whoever set RANK, WORLD_SIZE, MASTER_ADDR and
  //   MASTER_PORT: rank 0 serves the store from within its process, and all wait here until all
  //   are here, five minutes at most. Between machines the ranks need CADRE_SECRET_FILE, the name
  //   of a file with the same content on all of them ("cadre token new FILE" makes one); without it
  //   rank 0 listens on loopback alone, for processes of the same user.
  // Beyond what is said above:
  //   FAILED_PRECONDITION  nobody gave this process a rank, or a variable or the secret is missing;
  //                        this program and its agent are of different versions; this rank has
  //                        called it before (Cadre's agent serves both calls)
  //   INVALID_ARGUMENT     variables make no sense, contradict each other, or are not the same for
  //                        all ranks; ranks of one node do not follow each other
  //   PERMISSION_DENIED    rank 0 has another secret; a file that others may read
  //   NOT_FOUND            no file of that name
  static Result<std::unique_ptr<Worker>> Connect();
  // Likewise, as the options say, whatever the environment says. Place and nodes are found out.
  static Result<std::unique_ptr<Worker>> Connect(const WorkerOptions& options);

  virtual ~Worker() = default;

  virtual const WorkerPlace& place() const = 0;
  int rank() const { return place().rank; }
  int world_size() const { return place().world_size; }

  virtual Status Set(std::string_view key, std::string_view value) = 0;
  // Waits until the key is there; without time to wait, NOT_FOUND where it is not.
  virtual Result<std::string> Get(std::string_view key, std::chrono::nanoseconds timeout) = 0;
  // The sum afterwards; a key that is not there counts as 0. FAILED_PRECONDITION: it holds no
  // number.
  virtual Result<int64_t> Add(std::string_view key, int64_t delta) = 0;
  // What the key holds afterwards; FAILED_PRECONDITION when that is not `desired`.
  virtual Result<std::string> CompareAndSet(std::string_view key, std::string_view expected,
                                            std::string_view desired) = 0;
  virtual Status Delete(std::string_view key) = 0;
  // Waits until all ranks of the world have called it as often with that name.
  virtual Status Barrier(std::string_view name, std::chrono::nanoseconds timeout) = 0;
  virtual Status PublishCommunicatorId(std::string_view communicator, std::string_view id) = 0;
  virtual Result<std::string> CommunicatorId(std::string_view communicator,
                                             std::chrono::nanoseconds timeout) = 0;

  // More nodes wait for the next generation, as far as this process knows: see CheckpointWanted in
  // checkpoint.h, which all ranks answer alike.
  virtual bool MoreNodesWait() const { return false; }

  // The job recovers in place: this process may rejoin. TrainInPlace() (in_place.h) uses these.
  virtual bool in_place() const { return false; }
  // Says that it can, for as long as this object lives. `on_end` is called at most once, on another
  // thread, when the generation has ended. Once. FAILED_PRECONDITION: not in_place().
  virtual Status AnnounceRejoin(std::function<void()> on_end);
  // Gives the generation up, on account of `reason`, and waits for this process's place in the next
  // one. Where nobody else ends the generation, this does. ABORTED: this process is not kept.
  virtual Result<std::unique_ptr<Worker>> Rejoin(std::string_view reason,
                                                 std::chrono::nanoseconds timeout);

  // Tells the launcher how far this worker is, through CADRE_PROGRESS_FD; never blocks, never
  // fails.
  virtual void ReportProgress(int64_t step, double samples_per_second, double loss) = 0;
};

}  // namespace cadre

#endif  // CADRE_WORKER_H_
