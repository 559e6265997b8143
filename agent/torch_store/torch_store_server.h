// Serves the keys of one generation to clients of PyTorch's TCPStore, in one event loop.
//
// The protocol has no authentication. Connections are therefore accepted only from the generation's
// nodes, and on this node only from processes of the same user (base/peer_user.h). An error on one
// connection does not affect the others, and each kind of error is logged once.
//
// Used by one thread; only Serve blocks.
#ifndef CADRE_AGENT_TORCH_STORE_TORCH_STORE_SERVER_H_
#define CADRE_AGENT_TORCH_STORE_TORCH_STORE_SERVER_H_

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "agent/torch_store/byte_budget.h"
#include "agent/torch_store/torch_keys.h"
#include "base/scoped_fd.h"
#include "base/time.h"

namespace cadre::agent {

// The limit per generation: keys, values, queues, waits, incomplete requests and unread answers.
inline constexpr size_t kMaxTorchStoreBytes = size_t{512} << 20;
inline constexpr size_t kMaxTorchConnections = 16384;
// Once a client has this many bytes of unread answers, nothing more is read from it.
inline constexpr size_t kMaxTorchUnreadBytes = 1 << 20;
// A client that has not sent a valid VALIDATE by then is disconnected.
inline constexpr absl::Duration kTorchValidationTime = absl::Seconds(10);
// Calls that are still waiting this long after their generation was told to stop wait in vain, so
// their connections are closed: only then can a program that handles SIGTERM act on it. A program
// that does not handle it has ended before, and prints no error.
inline constexpr absl::Duration kTorchStopTimeout = absl::Milliseconds(500);

// The addresses from which a store accepts connections. Pure; any thread.
class NodeAddresses {
 public:
  // `nodes`: the reported addresses of a generation's nodes; `own`: where the store listens.
  // FAILED_PRECONDITION: they do not determine from where clients will connect.
  static absl::StatusOr<NodeAddresses> Make(const std::string& own,
                                            const std::vector<std::string>& nodes);

  // Whether the socket's peer is one of them.
  bool Has(const sockaddr_storage& peer) const;

 private:
  // The address bytes, without port and scope.
  std::set<std::string> addresses_;
};

// The numeric address, for messages.
std::string AddressText(const sockaddr_storage& address);

class TorchStoreServer {
 public:
  struct Options {
    // Must be non-blocking and listening.
    ScopedFd listener;
    NodeAddresses nodes;
    // Takes messages for the user.
    std::function<void(std::string line)> report;
    size_t max_connections = kMaxTorchConnections;
    size_t max_bytes = kMaxTorchStoreBytes;
    absl::Duration validation_time = kTorchValidationTime;
    absl::Duration stop_timeout = kTorchStopTimeout;
  };

  static absl::StatusOr<std::unique_ptr<TorchStoreServer>> Make(Options options);
  // Closes all connections.
  ~TorchStoreServer();
  TorchStoreServer(const TorchStoreServer&) = delete;
  TorchStoreServer& operator=(const TorchStoreServer&) = delete;

  // Waits for an event, a deadline or Wake(), for `limit` at most, and handles what is ready.
  void Serve(absl::Duration limit = absl::InfiniteDuration());
  // On any thread: ends a Serve that waits, or the next one.
  void Wake();

  // The generation is being stopped: connections that are waiting now, and still are after
  // `stop_timeout`, will be closed.
  void StopWaits();

  size_t connections() const { return connections_.size(); }
  size_t held_bytes() const { return budget_.held(); }

 private:
  struct Connection;
  // Errors that are reported once each.
  enum Problem {
    kUnknownNode,
    kOtherUser,
    kTooMany,
    kNoDescriptors,
    kProtocolError,
    kSilent,
    kNoRoom,
    kProblems
  };

  TorchStoreServer(Options options, ScopedFd epoll, ScopedFd wake);
  bool Watch(int fd, uint64_t number, uint32_t events, bool first);
  void Accept(MonoTime now);
  void AddConnection(ScopedFd socket, const sockaddr_storage& peer, MonoTime now);
  void OnEvent(uint64_t number, uint32_t events, MonoTime now);
  // Not OK: the connection must be closed, with the reason; without a message, it has ended.
  absl::Status ReadFrom(Connection& connection, MonoTime now);
  absl::Status OnRequest(Connection& connection, TorchRequest request, MonoTime now);
  void Answer(uint64_t number, absl::string_view bytes, const SharedText& value);
  // Sends the answers that the current event has caused.
  void SendAnswers();
  void Close(uint64_t number, const absl::Status& why);
  void CloseExpired(MonoTime now);
  MonoTime NextDeadline() const;
  void ReportOnce(Problem what, const std::string& line);

  Options options_;
  const ScopedFd epoll_;
  const ScopedFd wake_;
  // Destroyed last, because values count themselves in it.
  ByteBudget budget_;
  TorchKeys keys_;
  uint64_t last_number_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Connection>> connections_;
  // Connections without a valid VALIDATE, in order of deadline; some are closed or validated by
  // now.
  std::deque<std::pair<MonoTime, uint64_t>> unvalidated_;
  // Connections with answers to the current event.
  std::vector<uint64_t> answered_;
  // Set if no descriptor was left for a connection: none is accepted before this time.
  MonoTime accept_at_;
  MonoTime stop_waits_at_ = MonoTime::Never();
  MonoTime stopped_at_;
  bool reported_[kProblems] = {};
};

// The queue of answers that a client has not read yet, in order. Values are shared with the store,
// not copied.
class AnswerQueue {
 public:
  // `budget` counts the queued bytes, except for values, which count themselves.
  explicit AnswerQueue(ByteBudget* budget) : budget_(budget) {}
  ~AnswerQueue() { budget_->Give(counted_); }
  AnswerQueue(const AnswerQueue&) = delete;
  AnswerQueue& operator=(const AnswerQueue&) = delete;

  // `value` may be null. Returns false if there is no room.
  bool Add(absl::string_view bytes, const SharedText& value);

  // Includes values.
  size_t unread_bytes() const { return unread_bytes_; }
  bool empty() const { return pieces_.empty(); }

  // Sends what the socket accepts. Returns false if the socket is broken.
  bool SendTo(int socket);

 private:
  struct Piece {
    std::string bytes;
    SharedText value;  // used instead of `bytes` if not null
    absl::string_view text() const { return value == nullptr ? bytes : value->text(); }
  };
  void Sent(size_t bytes);

  ByteBudget* const budget_;
  std::deque<Piece> pieces_;
  // Bytes of the first piece that have been sent.
  size_t sent_ = 0;
  size_t unread_bytes_ = 0;
  size_t counted_ = 0;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_TORCH_STORE_TORCH_STORE_SERVER_H_
