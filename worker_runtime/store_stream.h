// A worker's store operations on one stream to its agent (LocalStore.Converse). It is opened when
// it is needed, and anew after it broke.
//
// Thread safe, without a thread of its own: of those who wait one reads for all, so that an answer
// is there without a switch to another thread.
#ifndef CADRE_WORKER_RUNTIME_STORE_STREAM_H_
#define CADRE_WORKER_RUNTIME_STORE_STREAM_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "proto/local_store.grpc.pb.h"
#include "proto/store.pb.h"

namespace cadre {

class StoreStream {
 public:
  // `token`: empty where the agent wants none.
  StoreStream(const std::shared_ptr<grpc::Channel>& channel, const std::string& token);
  // Nobody waits any more.
  ~StoreStream();
  StoreStream(const StoreStream&) = delete;
  StoreStream& operator=(const StoreStream&) = delete;

  // Fills in the reply to this request, whose id must be unique. Otherwise: how the stream has
  // ended, never OK; or gRPC's DEADLINE_EXCEEDED after `limit`.
  grpc::Status Execute(const v1::StoreRequest& request, absl::Duration limit,
                       v1::StoreReply* reply);

 private:
  // Unmoved by changes of the wall clock, which absl::Mutex in this version is not.
  using Clock = std::chrono::steady_clock;
  enum Tag : intptr_t { kStarted = 1, kRead, kWritten, kFinished };
  struct Waiter {
    v1::StoreReply* reply;
    std::optional<grpc::Status> end;
    std::condition_variable woken;
  };

  // All with mutex_ held; ReadFor lets it go while it reads.
  void Open();
  void ReadFor(Clock::time_point deadline, std::unique_lock<std::mutex>* lock);
  void Handle(Tag tag, bool ok);
  void WriteNext();
  void Answer();
  void End();
  void Close();
  void* Begin(Tag tag);
  // Somebody else reads from now on.
  void PassOn();
  void GiveUp(uint64_t request_id);

  const std::string token_;
  const std::unique_ptr<v1::LocalStore::Stub> stub_;
  grpc::CompletionQueue queue_;

  std::mutex mutex_;
  bool somebody_reads_ = false;
  std::map<uint64_t, Waiter*> waiters_;  // by request id
  std::deque<v1::StoreRequest> outbox_;
  // Of the stream that is open; null when none is.
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientAsyncReaderWriter<v1::StoreRequest, v1::StoreReply>> stream_;
  v1::StoreReply incoming_;
  grpc::Status status_;
  // Operations that the queue has not given back.
  int under_way_ = 0;
  bool started_ = false;
  bool writing_ = false;
  bool ending_ = false;
  bool finished_ = false;
};

}  // namespace cadre

#endif  // CADRE_WORKER_RUNTIME_STORE_STREAM_H_
