// Serves a store over TCP, for workers that no agent serves: the store's part of
// rpc/worker_protocol.h. Clients must prove that they know the store's key.
#ifndef CADRE_WORKER_RUNTIME_STORE_STORE_SERVER_H_
#define CADRE_WORKER_RUNTIME_STORE_STORE_SERVER_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "base/scoped_fd.h"
#include "base/time.h"
#include "cadre/result.h"
#include "worker_runtime/sockets/handshake.h"
#include "worker_runtime/store/call_stream.h"

namespace cadre::store {

// The limit of unauthenticated connections, in addition to one for every rank: new ones replace the
// oldest of those that have sent nothing, then the oldest of all.
inline constexpr size_t kMaxPendingConnections = 64;
// Unauthenticated connections are closed after this time.
inline constexpr absl::Duration kAuthenticationTimeout = absl::Seconds(10);

// Authenticates connections to a store: peers must prove that they know the store's key. An
// unauthenticated connection costs a descriptor for a while, and the store never sees it. Used by
// one thread; never blocks.
class StoreAcceptor {
 public:
  // `ranks` is the number of ranks that may connect. INTERNAL: the system has no descriptor for it.
  static Result<std::unique_ptr<StoreAcceptor>> Open(ScopedFd listener,
                                                     sockets::HandshakeParameters parameters,
                                                     int ranks);

  // Readable when Next should be called.
  int fd() const { return epoll_.get(); }
  // Returns the next authenticated connection; without a socket if there is none now.
  StoreConnection Next();
  // Does what is due: closes connections that took too long, and accepts again after a pause.
  // Returns when to call it again.
  MonoTime Advance(MonoTime now);

  // The rank that the last refused connection claimed to be: it did not prove that it knows the
  // key, or only one of the two sides encrypts. -1: none. May be called on any thread.
  int refused_rank() const { return refused_rank_; }
  // Whether this process ever lacked a descriptor for a new connection. May be called on any
  // thread.
  bool lacked_descriptors() const { return lacked_descriptors_; }

 private:
  struct PendingConnection {
    ScopedFd socket;
    sockets::Handshake handshake;
    MonoTime give_up;
    std::string received;
  };

  StoreAcceptor(ScopedFd epoll, ScopedFd listener, sockets::HandshakeParameters parameters,
                int ranks);
  void Accept();
  // False if there is no connection to close.
  bool MakeRoom();
  // False if it is authenticated now, or must be closed.
  bool Serve(PendingConnection& pending);
  bool Watch(int fd, uint64_t number);

  const ScopedFd epoll_;
  const ScopedFd listener_;
  const sockets::HandshakeParameters parameters_;
  const size_t room_;
  uint64_t last_number_ = 0;
  std::map<uint64_t, PendingConnection> pending_;  // the oldest first
  std::deque<StoreConnection> authenticated_;
  std::atomic<int> refused_rank_{-1};
  std::atomic<bool> lacked_descriptors_{false};
  // When descriptors run out, no connection is accepted before this time.
  MonoTime pause_until_ = MonoTime::Never();
};

class StoreServer {
 public:
  // Serves, on a background thread, all clients that connect to `listener` and prove that they know
  // `key` (StoreAcceptor), encrypted if CADRE_ENCRYPT is set. INTERNAL: the system has no
  // descriptors for it.
  static Result<std::unique_ptr<StoreServer>> Start(ScopedFd listener, int world_size,
                                                    const std::string& key);
  // Waiting clients fail with UNAVAILABLE.
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  // For example "10.0.0.1:4567"; "[::]:4567" means all addresses of this machine.
  const std::string& endpoint() const;
  // An address of this machine, other than loopback, at which a client reached it. Empty: none so
  // far.
  std::string address_reached() const;
  // Documented at StoreAcceptor.
  int refused_rank() const;
  bool lacked_descriptors() const;

  // Waits until at most one client, which is this process's own, is connected. False: not within
  // `timeout`.
  bool AwaitAlone(std::chrono::nanoseconds timeout);

 private:
  struct State;
  explicit StoreServer(std::unique_ptr<State> state);
  const std::unique_ptr<State> state_;
};

}  // namespace cadre::store

#endif  // CADRE_WORKER_RUNTIME_STORE_STORE_SERVER_H_
