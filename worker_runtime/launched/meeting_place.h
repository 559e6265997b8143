// Where the ranks of a launch without Cadre's agent find the store that rank 0 serves: a file, an
// address, or a key of torchrun's store. Used by one thread.
#ifndef CADRE_WORKER_RUNTIME_LAUNCHED_MEETING_PLACE_H_
#define CADRE_WORKER_RUNTIME_LAUNCHED_MEETING_PLACE_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/scoped_fd.h"
#include "base/time.h"
#include "cadre/result.h"
#include "cadre/status.h"
#include "worker_runtime/environment/read_launch.h"
#include "worker_runtime/environment/worker_environment.h"
#include "worker_runtime/store/served_worker.h"

namespace cadre::launched {

// The listening socket and key of rank 0's store, before it is served.
struct StoreListener {
  ScopedFd listener;
  std::string key;
};

class MeetingPlace {
 public:
  virtual ~MeetingPlace() = default;

  // Called by rank 0, in this order: to listen, to publish the store's address, and when all ranks
  // have connected.
  virtual Result<StoreListener> Open() = 0;
  virtual Status Announce(const StoreListener& store_listener, const std::string& endpoint) = 0;
  virtual void Close() {}

  // Called by the other ranks: returns the address to try. It may be left over from an earlier
  // launch, so callers ask again after each attempt. NOT_FOUND: rank 0 has published nothing yet.
  // Other errors are final.
  virtual Result<store::StoreAddress> Find() = 0;

  // How long a peer that does not know the secret may be a leftover of an earlier launch, so that
  // callers retry.
  virtual absl::Duration RefusalTimeout() const = 0;
  // A hint for the user if ranks do not find each other; may be empty.
  virtual std::string Advice() const { return ""; }
};

// Ranks find each other at an address that all of them were given: rank 0 listens there.
//
// `one_node` is nullopt if unknown. FAILED_PRECONDITION: the ranks are on several machines and have
// no shared secret; the message says what to do. UNAVAILABLE: the host's name cannot be resolved.
Result<std::unique_ptr<MeetingPlace>> MeetAtAddress(const environment::AtAddress& at,
                                                    const environment::Secret& secret,
                                                    std::optional<bool> one_node);

// Returns a socket that listens on this machine so that the other ranks reach it as `host`: at the
// first of the host's addresses that can be bound, or at all of the machine's if the name resolves
// to loopback here or to another machine that forwards to this one. UNAVAILABLE, with the reason:
// none can be bound.
Result<ScopedFd> ListenAsHost(const std::string& host, uint16_t port);

// mpirun's ranks find each other through a file that only this user can read, with the store's
// endpoint and key: in the home directory that the nodes share or, on one node, in the machine's
// runtime directory.
//
// FAILED_PRECONDITION: the directory is not usable; the message says what to do.
Result<std::unique_ptr<MeetingPlace>> MeetThroughFile(const environment::ThroughFile& file,
                                                      bool one_node);

// torchrun's ranks find each other through the store that torchrun serves: rank 0 publishes its own
// store's address there.

// torchrun starts its store before its workers, so a store that does not answer is given up soon.
inline constexpr absl::Duration kTorchrunTimeout = absl::Seconds(8);

// FAILED_PRECONDITION: there are several nodes and no shared secret; the message says what to do.
// Calls of the meeting place fail with UNAVAILABLE after kTorchrunTimeout if torchrun's store does
// not answer, or does not speak the protocol of PyTorch 2.1 or newer.
Result<std::unique_ptr<MeetingPlace>> MeetThroughTorchrun(
    const environment::ThroughTorchrun& through, const environment::Secret& secret, bool one_node);

// A client of PyTorch's TCPStore, limited to what ranks need to publish their own store's address
// in the one that torchrun serves. Uses the protocol of PyTorch 2.1 and newer. Used by one thread.
class TorchStore {
 public:
  // Connects to an endpoint such as "10.0.0.1:4567" and verifies that the peer speaks the protocol.
  // Waits at most kAnswerTimeout, as does each further call. UNAVAILABLE: nothing listens there,
  // or it does not answer as such a store.
  static Result<TorchStore> Connect(const std::string& endpoint);
  static constexpr absl::Duration kAnswerTimeout = absl::Seconds(5);

  // UNAVAILABLE: the store is gone, or does not answer.
  Status Set(absl::string_view key, absl::string_view value);
  // nullopt: the key does not exist. INTERNAL: its value is longer than `limit`.
  Result<std::optional<std::string>> Get(absl::string_view key, size_t limit);

  // This machine's address on the connection to the store.
  std::string local_address() const;

 private:
  explicit TorchStore(ScopedFd socket) : socket_(std::move(socket)) {}
  Status Send(absl::string_view bytes, MonoTime deadline);
  Result<std::string> Receive(size_t size, MonoTime deadline);

  ScopedFd socket_;
};

}  // namespace cadre::launched

#endif  // CADRE_WORKER_RUNTIME_LAUNCHED_MEETING_PLACE_H_
