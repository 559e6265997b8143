// Accepts connections in place of gRPC, which stops accepting for good once it has run out of
// descriptors, and which lets every client hold as many connections as there is memory for. gRPC
// gets a connection when its first byte has arrived. A connection that does not authenticate in
// time is closed. What connections may cost until then is bounded (AdmissionBudget): further
// connections of the same source wait here, the newest is served next, and one that has waited too
// long is closed, so that its client connects again.
#ifndef CADRE_RENDEZVOUS_SERVICE_ACCEPTOR_H_
#define CADRE_RENDEZVOUS_SERVICE_ACCEPTOR_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/scoped_fd.h"
#include "base/time.h"
#include "rendezvous/service/caller_limits.h"
#include "rendezvous/service/connection_watch.h"

namespace cadre::service {

// The address and port of the other end of a connection.
struct Peer {
  std::string address;
  int port = 0;

  bool operator<(const Peer& other) const {
    return std::tie(address, port) < std::tie(other.address, other.port);
  }
  bool operator==(const Peer& other) const {
    return address == other.address && port == other.port;
  }
};

// Limits the number and the age of unauthenticated connections. A client that opens many, or sends
// nothing, cannot keep clients with a token from connecting. Pure; one thread at a time.
class PendingConnections {
 public:
  PendingConnections(size_t max, absl::Duration timeout) : max_(max), timeout_(timeout) {}

  size_t size() const { return peers_.size(); }
  absl::Duration timeout() const { return timeout_; }

  // Adds a connection from `source` (SourceOf). If there are `max` already, one is
  // removed and returned; see TakeOldestOfTheMost.
  std::optional<Peer> Add(const Peer& peer, const std::string& source, MonoTime now);
  // The connection has authenticated or ended. False: it is not known.
  bool Remove(const Peer& peer);
  // Changes the deadline. False: the connection is not known.
  bool SetDeadline(const Peer& peer, MonoTime deadline);
  // Removes the oldest connection of the source with the most connections; nullopt: there is none.
  std::optional<Peer> TakeOldestOfTheMost();
  // Removes the connections whose deadline has passed.
  std::vector<Peer> TakeOverdue(MonoTime now);
  // When the next deadline passes.
  MonoTime NextDeadline() const;

 private:
  // The connections of one source, by number: the first is the oldest.
  using OfSource = std::map<uint64_t, Peer>;

  struct Pending {
    std::string source;
    uint64_t number = 0;
    MonoTime deadline;
  };

  const size_t max_;
  const absl::Duration timeout_;
  uint64_t next_number_ = 0;
  std::map<Peer, Pending> peers_;
  std::map<std::string, OfSource> sources_;
  // Sources by the number of their connections.
  std::set<std::pair<size_t, std::string>> by_size_;
  std::set<std::pair<MonoTime, Peer>> by_deadline_;
};

struct AcceptorOptions {
  std::string host;
  int port = 0;
  // Limits of unauthenticated connections: how many there may be (each takes two descriptors), and
  // for how long. The number is twice that of the nodes of the largest job.
  size_t max_pending = 8192;
  absl::Duration timeout = absl::Seconds(20);
  AdmissionLimits limits;
  // Receives the reason when a connection is closed before its deadline; may be null.
  ConnectionWatch::Log log;
};

// Parses grpc::ServerContext::peer(), "ipv4:10.0.0.1:29400" or "ipv6:%5Bfe80::1%252%5D:29400", into
// the form that the acceptor uses: without the zone ("%2"). nullopt: it is neither.
std::optional<Peer> PeerOf(const std::string& context_peer);

// Thread safe except for Start and Stop.
class Acceptor {
 public:
  // Listens when it returns, and accepts connections after Start. Errors as CheckListen.
  static absl::StatusOr<std::unique_ptr<Acceptor>> Listen(const AcceptorOptions& options);
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  int port() const { return port_; }

  // `hand_over` receives each connection and its first byte, on a thread of the acceptor, once that
  // byte has arrived. Call it once.
  void Start(std::function<void(ScopedFd, char)> hand_over);

  // Stops accepting and frees the port. Accepted connections are unaffected. Idempotent.
  void Stop();

  // The peer's connection has authenticated as `caller`; null: as an administrator.
  void Admit(const Peer& peer, std::shared_ptr<CallerTraffic> caller);
  // The peer's connection has sent a wrong token or none: it is closed once the answer has had time
  // to arrive.
  void Refuse(const Peer& peer);

 private:
  // An unauthenticated connection.
  struct Held {
    // A second descriptor, because gRPC closes its own at any time.
    ScopedFd second;
    // The source whose budget is charged.
    std::string source;
    // Set until gRPC gets it.
    ScopedFd connection;
    // The first byte of `connection`, once it has arrived.
    std::optional<char> first_byte;
    // Set once gRPC has the connection.
    std::shared_ptr<ConnectionWatch> watch;
    // Its place in the queue for its source's budget; 0: it does not wait.
    uint64_t queue_number = 0;
  };
  struct Ready {
    ScopedFd connection;
    char first_byte;
  };

  Acceptor(const AcceptorOptions& options, std::vector<ScopedFd> listeners, int port);

  void Run();
  int MillisToNextTurn();
  void Accept(int listener);
  // Handles a held connection that has sent data or ended.
  void OnReadable(int second);
  // Returns false if there is no descriptor left to hold it by.
  bool Hold(const Peer& peer, ScopedFd* connection);
  void StopWaiting(Held* held) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives gRPC the connections that need not wait any more.
  void HandOverReady();
  std::optional<Ready> TakeReady();
  // Drops an eighth of the unauthenticated connections, and at least one. False: there is none.
  bool EvictOldest();
  // Handles the lack of descriptors: unauthenticated connections are dropped, or the next one is
  // refused.
  void MakeRoom(int listener);
  void RefuseOne(int listener);
  // Waits until Wake is called or kPauseMs have passed.
  void Pause();
  void DropOverdue();
  // Shuts the connection down for both sides.
  void Drop(const Peer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Forgets the connection: gRPC alone owns it from now on.
  void Release(const Peer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Wake();

  std::vector<ScopedFd> listeners_;
  const int port_;
  const ScopedFd epoll_;
  const ScopedFd wake_;
  std::atomic<bool> stopping_{false};
  // Closed for a moment to accept a connection that is then refused.
  ScopedFd reserve_;
  std::function<void(ScopedFd, char)> hand_over_;
  const std::shared_ptr<AdmissionBudget> budget_;
  const ConnectionWatch::Log log_;

  absl::Mutex mutex_;
  PendingConnections pending_ ABSL_GUARDED_BY(mutex_);
  std::map<Peer, Held> held_ ABSL_GUARDED_BY(mutex_);
  // The keys are second descriptors.
  std::map<int, Peer> peers_ ABSL_GUARDED_BY(mutex_);
  // The connections that wait for their source's budget, by source: the newest is last.
  std::map<std::string, std::map<uint64_t, Peer>> waiting_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_waiting_ ABSL_GUARDED_BY(mutex_) = 1;

  std::thread thread_;
};

}  // namespace cadre::service

#endif  // CADRE_RENDEZVOUS_SERVICE_ACCEPTOR_H_
