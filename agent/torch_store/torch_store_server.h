// Serves the keys of one generation to clients of PyTorch's TCPStore, on one loop.
//
// The protocol proves nothing about who speaks it: connections are taken from the generation's
// nodes alone, and on this one from processes of the same user (base/peer_user.h). What goes wrong
// with one costs nobody else anything, and is said once of each kind.
//
// Used by one thread, and never blocks but in Serve.
#ifndef CADRE_AGENT_TORCH_STORE_TORCH_STORE_SERVER_H_
#define CADRE_AGENT_TORCH_STORE_TORCH_STORE_SERVER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/torch_store/byte_budget.h"
#include "agent/torch_store/limits.h"
#include "agent/torch_store/node_addresses.h"
#include "agent/torch_store/torch_keys.h"
#include "base/scoped_fd.h"
#include "base/time.h"

namespace cadre::agent {

class TorchStoreServer {
 public:
  struct Options {
    // Non-blocking, and listening.
    ScopedFd listener;
    NodeAddresses nodes;
    // Takes lines for people.
    std::function<void(std::string line)> say;
    size_t max_connections = kMaxTorchConnections;
    size_t max_bytes = kMaxTorchStoreBytes;
    absl::Duration validation_time = kTorchValidationTime;
    absl::Duration stop_patience = kTorchStopPatience;
  };

  static absl::StatusOr<std::unique_ptr<TorchStoreServer>> Make(Options options);
  // Closes all connections.
  ~TorchStoreServer();
  TorchStoreServer(const TorchStoreServer&) = delete;
  TorchStoreServer& operator=(const TorchStoreServer&) = delete;

  // Waits until a client says something, something is due or Wake() was called, `limit` at most,
  // and handles what there is.
  void Serve(absl::Duration limit = absl::InfiniteDuration());
  // In any thread: ends a Serve that waits, or the next one.
  void Wake();

  // The generation is being stopped: what waits now, and does in a moment still, waits in vain.
  void StopWaits();

  size_t connections() const { return connections_.size(); }
  size_t held_bytes() const { return budget_.held(); }

 private:
  struct Connection;
  // What is said once.
  enum Complaint {
    kStranger,
    kOtherUser,
    kTooMany,
    kNoDescriptors,
    kGarbage,
    kSilent,
    kNoRoom,
    kComplaints
  };

  TorchStoreServer(Options options, ScopedFd epoll, ScopedFd wake);
  bool Watch(int fd, uint64_t number, uint32_t events, bool first);
  void Accept(MonoTime now);
  void Admit(ScopedFd socket, const sockaddr_storage& peer, MonoTime now);
  void OnEvent(uint64_t number, uint32_t events, MonoTime now);
  // Not OK: the connection is to be closed, and why; with no message, because it has ended.
  absl::Status ReadFrom(Connection& connection, MonoTime now);
  absl::Status Take(Connection& connection, TorchRequest request, MonoTime now);
  void Answer(uint64_t number, absl::string_view bytes, const SharedText& value);
  // Sends the answers that this event led to.
  void SendAnswers();
  void Close(uint64_t number, const absl::Status& why);
  void CloseWhatIsDue(MonoTime now);
  MonoTime NextDeadline() const;
  void SayOnce(Complaint what, const std::string& line);

  Options options_;
  const ScopedFd epoll_;
  const ScopedFd wake_;
  // Goes last: values count themselves in it.
  ByteBudget budget_;
  TorchKeys keys_;
  uint64_t last_number_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Connection>> connections_;
  // Those that have not validated yet, some of which are gone or have by now; in order of deadline.
  std::deque<std::pair<MonoTime, uint64_t>> unproven_;
  // Connections with answers of the event that is handled.
  std::vector<uint64_t> answered_;
  // No descriptor was left for a connection: nobody is let in before.
  MonoTime accept_at_;
  MonoTime stop_waits_at_ = MonoTime::Never();
  MonoTime stopped_at_;
  bool said_[kComplaints] = {};
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_TORCH_STORE_TORCH_STORE_SERVER_H_
