// The threads on which gRPC's work for the server is done, and what its operations lead to.
//
// gRPC's callback API would bring threads of its own. Those wake one another for every message, and
// each sleeps for 0.1 s after it had nothing to do for a second.
#ifndef CADRE_RENDEZVOUS_SERVICE_CALL_THREADS_H_
#define CADRE_RENDEZVOUS_SERVICE_CALL_THREADS_H_

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace cadre::service {

// The tag that an operation is started with.
class Operation {
 public:
  // On one of the threads, when it has ended; must not block.
  virtual void Ended(bool ok) = 0;

 protected:
  ~Operation() = default;
};

// An operation whose end is told to a member function of T.
template <typename T, void (T::*kReaction)(bool)>
class OperationOf final : public Operation {
 public:
  explicit OperationOf(T* owner) : owner_(owner) {}
  void Ended(bool ok) override { (owner_->*kReaction)(ok); }

 private:
  T* const owner_;
};

// Thread safe.
class CallThreads {
 public:
  explicit CallThreads(std::unique_ptr<grpc::ServerCompletionQueue> queue);
  // The server must have been shut down. Waits until all calls are over.
  ~CallThreads();
  CallThreads(const CallThreads&) = delete;
  CallThreads& operator=(const CallThreads&) = delete;

  grpc::ServerCompletionQueue* queue() const { return queue_.get(); }
  // Once, after the server has started.
  void Start();

  // A call has begun, and is over: nothing more is started for it.
  void Enter();
  void Leave();

 private:
  void Run();

  const std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable all_over_;
  size_t calls_ = 0;  // guarded by mutex_
};

}  // namespace cadre::service

#endif  // CADRE_RENDEZVOUS_SERVICE_CALL_THREADS_H_
