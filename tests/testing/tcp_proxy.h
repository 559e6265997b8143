// A TCP proxy on loopback, between a server and those who are given its port instead, in which one
// direction can stand still alone, as on a link that loses what goes one way; or everything is
// late; or answers are lost with their connection. A thread of its own; any thread may call.
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

  // In front of a port of loopback.
  explicit TcpProxy(int server_port);
  ~TcpProxy();
  TcpProxy(const TcpProxy&) = delete;
  TcpProxy& operator=(const TcpProxy&) = delete;

  int port() const { return listener_.port(); }

  // What goes this way, the ends of connections included, waits from now on, of all connections
  // that there are and will be; or goes on, with all that has waited.
  void Hold(Direction direction, bool held);
  // Each byte arrives so much later than it was sent, both ways.
  void Delay(absl::Duration delay);
  // From now on what goes this way is taken, and lost, until Reset.
  void Lose(Direction direction);
  // Ends all connections at both ends, without a goodbye. Nothing is lost from then on.
  void Reset();

  // So many bytes have arrived this way since this object was made.
  int64_t arrived(Direction direction) const;
  // Waits until there are more of them than this.
  bool AwaitArrived(Direction direction, int64_t more_than, absl::Duration timeout) const;

 private:
  struct Connection;

  void Serve();
  void Accept();
  void EndAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Moves what is due, and says when the next is; false: the connection is over.
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
  std::list<Connection> connections_;  // the thread's
  std::thread thread_;
};

}  // namespace cadre

#endif  // CADRE_TESTS_TESTING_TCP_PROXY_H_
