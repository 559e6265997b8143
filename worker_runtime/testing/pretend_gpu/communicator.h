// One rank of a pretend NCCL communicator. It is thread safe, so that it can report a program that
// uses it from two threads at once. Compiled only where NCCL's header is.
#ifndef CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_COMMUNICATOR_H_
#define CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_COMMUNICATOR_H_

#ifdef CADRE_HAVE_NCCL_HEADERS
#include <nccl.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "worker_runtime/testing/pretend_gpu/board.h"
#include "worker_runtime/testing/pretend_gpu/collective.h"
#include "worker_runtime/testing/pretend_gpu/memory.h"

namespace cadre::pretend_gpu {

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  struct Place {
    // The same on all ranks; consists of letters and digits.
    std::string id;
    int rank = 0;
    int size = 1;
    int device = 0;
    // Whether calls return only when they are complete; otherwise they return ncclInProgress at
    // once.
    bool blocking = true;
  };
  using Children = std::function<void(std::shared_ptr<Communicator>)>;

  explicit Communicator(const Place& place);

  const Place& place() const { return place_; }
  // Returns the result of ncclCommGetAsyncError; `text` receives the error's description.
  ncclResult_t state(std::string* text) const;

  ncclResult_t Join();
  // Queues operations that the stream runs as one group, after those queued before.
  ncclResult_t Enqueue(const std::vector<Operation>& operations, Stream& stream);
  // `made` receives the child, or null if `color` is negative, before the call is complete.
  ncclResult_t Split(int color, int key, bool blocking, Children made);
  ncclResult_t Finalize();
  // Waits for the queued operations, unless one has failed.
  void Destroy();
  // Stops running operations and waits until they have ended.
  void Abort();

  // Whether operations may be queued.
  ncclResult_t CheckReady() const;

  ncclRedOp_t MakeFactor(ncclDataType_t type, std::string scalar);
  bool DropFactor(ncclRedOp_t op);
  // Returns false if there is no factor of that number.
  bool FindFactor(ncclRedOp_t op, ncclDataType_t* type, std::string* scalar) const;

 private:
  friend class InsideCommunicator;
  using Task = std::function<ncclResult_t(std::string* text)>;

  ncclResult_t Run(bool blocking, Task task);
  ncclResult_t Meet(std::string* text);
  void Perform(const std::vector<Operation>& operations, uint64_t turn);
  CollectiveResult PerformAll(const std::vector<Operation>& operations);
  void SetError(const CollectiveResult& result);
  ncclResult_t MakeChild(const std::string& id, int rank, int size, bool blocking,
                         const Children& made, std::string* text);

  const Place place_;
  const std::shared_ptr<std::atomic<bool>> ended_ = std::make_shared<std::atomic<bool>>(false);
  Board board_;
  Meeting stream_meeting_;
  Meeting host_meeting_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  ncclResult_t state_ = ncclInProgress;
  std::string text_;
  bool task_runs_ = false;
  bool finalized_ = false;
  // Counts operations in the order of their calls, on all streams.
  uint64_t queued_ = 0;
  uint64_t performed_ = 0;
  int inside_ = 0;  // streams that are running an operation
  int splits_ = 0;
  int factors_made_ = 0;
  struct Factor {
    ncclDataType_t type;
    std::string scalar;
  };
  std::map<int, Factor> factors_;
  std::thread::id owner_;  // the thread that is in a call
};

// Marks this thread as being in a call of the communicator while it lives; reports a mistake if
// another thread is in one.
class InsideCommunicator {
 public:
  InsideCommunicator(Communicator& communicator, const char* what);
  ~InsideCommunicator();
  InsideCommunicator(const InsideCommunicator&) = delete;
  InsideCommunicator& operator=(const InsideCommunicator&) = delete;

  bool ok() const { return is_alone_; }

 private:
  Communicator& communicator_;
  bool is_alone_ = false;
};

// The handles that the pretend NCCL gives to programs for communicators. Thread safe. Compiled only
// where NCCL's header is.
ncclComm_t MakeHandle(std::shared_ptr<Communicator> communicator);
// Returns null, after Refuse(), if the handle was never one or has ended; if `what` is not null, a
// mistake is reported too.
std::shared_ptr<Communicator> FindCommunicator(ncclComm_t handle, const char* what);
// Ends the handle; `end` is "aborted" or "destroyed". Handles are never reused.
std::shared_ptr<Communicator> TakeCommunicator(ncclComm_t handle, const char* what,
                                               const char* end);

}  // namespace cadre::pretend_gpu

#endif  // CADRE_HAVE_NCCL_HEADERS

#endif  // CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_COMMUNICATOR_H_
