// The unary calls (Store, Control) between gRPC and the core thread, and the threads that handle
// gRPC's calls and streams (node_stream.h).
#ifndef CADRE_RENDEZVOUS_SERVICE_CALLS_H_
#define CADRE_RENDEZVOUS_SERVICE_CALLS_H_

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "proto/control.grpc.pb.h"
#include "proto/store.grpc.pb.h"
#include "rendezvous/accounting/accounting.h"
#include "rendezvous/service/admission.h"

namespace cadre::service {

// The tag with which an asynchronous operation is started.
class Operation {
 public:
  // Called on one of the threads when the operation has ended; must not block.
  virtual void Ended(bool ok) = 0;

 protected:
  ~Operation() = default;
};

// An operation that calls a member function of T when it has ended.
template <typename T, void (T::*kReaction)(bool)>
class OperationOf final : public Operation {
 public:
  explicit OperationOf(T* owner) : owner_(owner) {}
  void Ended(bool ok) override { (owner_->*kReaction)(ok); }

 private:
  T* const owner_;
};

// The threads that handle gRPC's completion queue for the server. gRPC's callback API would add
// threads of its own, which wake one another for every message, and each of which sleeps for 0.1 s
// after it was idle for a second. Thread safe.
class CallThreads {
 public:
  explicit CallThreads(std::unique_ptr<grpc::ServerCompletionQueue> queue);
  // The server must have been shut down. Waits until all calls have ended.
  ~CallThreads();
  CallThreads(const CallThreads&) = delete;
  CallThreads& operator=(const CallThreads&) = delete;

  grpc::ServerCompletionQueue* queue() const { return queue_.get(); }
  // Call it once, after the server has started.
  void Start();

  // Mark the begin of a call, and its end, after which no operation is started for it.
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

// Serve every call until the server is shut down. Service, threads and admission must outlive the
// server.

// The core's answer, whatever its code, is the reply of a call with status OK, because a
// compare-and-set that found another value must return that value.
void ServeStore(v1::Store::AsyncService& service, CallThreads& threads, const Admission& admission);

// `accounting` may be null.
void ServeControl(v1::Control::AsyncService& service, CallThreads& threads,
                  const Admission& admission, accounting::Accounting* accounting);

}  // namespace cadre::service

#endif  // CADRE_RENDEZVOUS_SERVICE_CALLS_H_
