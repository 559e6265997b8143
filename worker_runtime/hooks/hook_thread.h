// Where a hook's steps run, so that nothing blocks the thread that computes gradients: one bucket
// after the other, so that all ranks make the same collectives in the same order.
#ifndef CADRE_WORKER_RUNTIME_HOOKS_HOOK_THREAD_H_
#define CADRE_WORKER_RUNTIME_HOOKS_HOOK_THREAD_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "cadre/communicator.h"
#include "cadre/status.h"
#include "worker_runtime/backend/operation_thread.h"

namespace cadre::hooks {

// Thread safe; the collectives are for operations that run here. A hook has it as its last member,
// so that it stops before what its operations use is gone.
class HookThread {
 public:
  // Never blocks. After one operation failed, all later ones fail with its status.
  std::shared_ptr<Work> Start(backend::OperationThread::Operation operation) {
    return thread_.Enqueue(std::move(operation));
  }

  // These wait until the collective is done.
  Status AllReduce(Communicator& communicator, Buffer buffer, ReduceOp op);
  // Sums floats, which travel as elements of `wire` (float32 or a type of 16 bits).
  Status SumFloats(Communicator& communicator, float* values, size_t count, DataType wire);
  Status AllGather(Communicator& communicator, Buffer input, Buffer output);
  Status Broadcast(Communicator& communicator, Buffer buffer, int root);
  // For a work of another hook.
  Status Wait(Communicator& communicator, const std::shared_ptr<Work>& work);

  uint64_t bytes_given() const { return bytes_given_; }

 private:
  std::atomic<uint64_t> bytes_given_{0};
  backend::OperationThread thread_;
};

}  // namespace cadre::hooks

#endif  // CADRE_WORKER_RUNTIME_HOOKS_HOOK_THREAD_H_
