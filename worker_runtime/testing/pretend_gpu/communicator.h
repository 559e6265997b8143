// A rank of a pretend NCCL communicator. Thread safe, so that it can tell when a program is not.
// Only where NCCL's header is.
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
#include "worker_runtime/testing/pretend_gpu/operation.h"
#include "worker_runtime/testing/pretend_gpu/streams.h"

namespace cadre::pretend_gpu {

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  struct Place {
    // The same on all ranks, of letters and digits.
    std::string id;
    int rank = 0;
    int size = 1;
    int device = 0;
    // Whether calls return only when they are through, else ncclInProgress at once.
    bool blocking = true;
  };
  using Children = std::function<void(std::shared_ptr<Communicator>)>;

  explicit Communicator(const Place& place);

  const Place& place() const { return place_; }
  // What ncclCommGetAsyncError says; `text` gets the words of an error.
  ncclResult_t state(std::string* text) const;

  ncclResult_t Join();
  // Queues operations that the stream runs as one, after those that were queued before.
  ncclResult_t Enqueue(const std::vector<Operation>& operations, Stream& stream);
  // `made` gets the child, or null where `color` is negative, before the call is through.
  ncclResult_t Split(int color, int key, bool blocking, Children made);
  ncclResult_t Finalize();
  // Waits for what was queued, where nothing failed.
  void Destroy();
  // Ends what runs and waits until it has ended.
  void Abort();

  // Whether operations may be queued.
  ncclResult_t CheckReady() const;

  ncclRedOp_t MakeFactor(ncclDataType_t type, std::string scalar);
  bool DropFactor(ncclRedOp_t op);
  // False: there is none of that number.
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
  // Operations in the order of their calls, on whatever streams.
  uint64_t queued_ = 0;
  uint64_t performed_ = 0;
  int inside_ = 0;  // streams that are at one
  int splits_ = 0;
  int factors_made_ = 0;
  struct Factor {
    ncclDataType_t type;
    std::string scalar;
  };
  std::map<int, Factor> factors_;
  std::thread::id owner_;  // the thread that is inside
};

// While it lives this thread is inside the communicator; reports another one that is.
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

}  // namespace cadre::pretend_gpu

#endif  // CADRE_HAVE_NCCL_HEADERS

#endif  // CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_COMMUNICATOR_H_
