// A worker's calls to its store on one socket (rpc/worker_protocol.h), encrypted or not.
#ifndef CADRE_WORKER_RUNTIME_STORE_CALL_STREAM_H_
#define CADRE_WORKER_RUNTIME_STORE_CALL_STREAM_H_

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/scoped_fd.h"
#include "cadre/result.h"
#include "cadre/status.h"
#include "rpc/worker_protocol.h"
#include "worker_runtime/wire/connection.h"

namespace cadre::store {

// An authenticated connection to a store.
struct StoreConnection {
  // Without keys the connection is not encrypted.
  StoreConnection(ScopedFd socket,
                  std::optional<wire::RecordKeys> keys = std::nullopt)  // NOLINT: implicit
      : socket(std::move(socket)), keys(std::move(keys)) {}

  ScopedFd socket;  // non-blocking; may be empty
  // The keys that encrypt and decrypt its frames; nullopt: they are not encrypted.
  std::optional<wire::RecordKeys> keys;
};

// Returns a non-blocking socket. UNAVAILABLE: nothing listens there.
Result<ScopedFd> ConnectToUnixSocket(const std::string& path);

// Encrypts and decrypts the content of frames on a connection to a store: each frame is one record.
// Pure; used by one thread at a time.
class SealedFrames {
 public:
  // The bytes that encryption adds to a frame.
  static constexpr size_t kMoreBytes = wire::kRecordTagBytes;

  explicit SealedFrames(wire::RecordKeys keys);

  // Encrypts a frame, which includes its length. Frames must be sent in the order of the calls.
  std::string Seal(std::string frame);
  // Decrypts the next received frame. UNAVAILABLE, for good: it is not what was sent.
  Result<std::string> Open(absl::string_view content);

 private:
  wire::RecordCipher outgoing_;
  wire::RecordCipher incoming_;
};

// It connects on demand, and reconnects after the connection broke.
//
// Thread safe, without a thread of its own: one of the waiting callers reads for all, so that an
// answer arrives without a switch to another thread.
class CallStream {
 public:
  // Returns a connection, or the reason why there is none.
  using Connector = std::function<Result<StoreConnection>()>;
  // `token` is sent first on each connection; nullopt: nothing is.
  CallStream(Connector connector, std::optional<std::string> token);
  // No call may be waiting any more.
  ~CallStream();
  CallStream(const CallStream&) = delete;
  CallStream& operator=(const CallStream&) = delete;

  // Returns the reply to this call, whose id must be unique and not 0; the reply's code is not
  // checked. UNAVAILABLE: the server cannot be reached, or is gone, and the same call may be
  // retried. DEADLINE_EXCEEDED, without a message: no answer within `limit`. Other errors say why
  // the server refuses this client.
  Result<rpc::WorkerReply> Call(const rpc::WorkerCall& call, absl::Duration limit);
  // Makes all calls fail with CANCELLED, including those that are waiting.
  void Close();

 private:
  // Not affected by changes of the wall clock, unlike absl::Mutex in this version.
  using Clock = std::chrono::steady_clock;
  struct Connection;
  struct Waiter {
    rpc::WorkerReply reply;
    std::optional<Status> end;
    std::condition_variable woken;
  };

  // All are called with mutex_ held; those that take the lock release it while they wait.
  Status Connect();
  void WriteAll(Clock::time_point deadline, std::unique_lock<std::mutex>* lock);
  void ReadFor(Clock::time_point deadline, std::unique_lock<std::mutex>* lock);
  // Completes the calls whose answers were read; an error says why the connection is unusable.
  Status Answer(Connection& connection);
  // Closes this connection, and fails all calls that wait for it.
  void Break(const std::shared_ptr<Connection>& connection, const Status& why);
  // Makes another waiting caller read from now on.
  void HandOverReading();

  const Connector connector_;
  const std::optional<std::string> token_;

  std::mutex mutex_;
  bool closed_ = false;
  // Null if not connected.
  std::shared_ptr<Connection> connection_;
  std::map<uint64_t, Waiter*> waiters_;  // by the call's id
};

}  // namespace cadre::store

#endif  // CADRE_WORKER_RUNTIME_STORE_CALL_STREAM_H_
