// A TCP proxy on loopback in front of a server; clients get the proxy's port instead. One direction
// can stall alone, as on a link that loses packets one way; or everything is delayed; or answers
// are lost with their connection. It has its own thread; any thread may call it.
#ifndef CADRE_TESTS_TESTING_TCP_PROXY_H_
#define CADRE_TESTS_TESTING_TCP_PROXY_H_

#include <cstdint>
#include <list>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/scoped_fd.h"
#include "tests/testing/loopback_socket.h"

namespace cadre {

class TcpProxy {
 public:
  enum Direction { kToServer = 0, kFromServer = 1 };

  // Forwards to a port of loopback.
  explicit TcpProxy(int server_port);
  ~TcpProxy();
  TcpProxy(const TcpProxy&) = delete;
  TcpProxy& operator=(const TcpProxy&) = delete;

  int port() const { return listener_.port(); }

  // While `held`, everything in this direction waits, including the ends of connections, on all
  // present and future connections; when released, all that has waited is forwarded.
  void Hold(Direction direction, bool held);
  // Each byte arrives `delay` after it was sent, in both directions.
  void Delay(absl::Duration delay);
  // From now on bytes in this direction are accepted and dropped, until Reset.
  void Lose(Direction direction);
  // Resets all connections at both ends. Nothing is dropped from then on.
  void Reset();

  // Returns how many bytes have arrived in this direction since this object was made.
  int64_t arrived(Direction direction) const;
  // Waits until more than `more_than` bytes have arrived.
  bool AwaitArrived(Direction direction, int64_t more_than, absl::Duration timeout) const;

 private:
  struct Connection;

  void Serve();
  void Accept();
  void EndAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Forwards what is due and sets `next` to the next due time; returns false if the connection is
  // over.
  bool Move(Connection& connection, absl::Time now, absl::Time* next);
  bool Read(Connection& connection, int direction, absl::Time now);
  void Wake() const;

  const int server_port_;
  const LoopbackSocket listener_;
  ScopedFd wake_, waker_;
  mutable absl::Mutex mutex_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  bool reset_ ABSL_GUARDED_BY(mutex_) = false;
  bool held_[2] ABSL_GUARDED_BY(mutex_) = {};
  bool lost_[2] ABSL_GUARDED_BY(mutex_) = {};
  absl::Duration delay_ ABSL_GUARDED_BY(mutex_);
  int64_t arrived_[2] ABSL_GUARDED_BY(mutex_) = {};
  std::list<Connection> connections_;  // used by the thread alone
  std::thread thread_;
};

}  // namespace cadre

#endif  // CADRE_TESTS_TESTING_TCP_PROXY_H_
