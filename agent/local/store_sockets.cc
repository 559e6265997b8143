#include "agent/local/store_sockets.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "base/token.h"
#include "rpc/frames/store_frames.h"
#include "rpc/store_reply.h"

namespace cadre {
namespace {

// Connections that one Read looks at; the others' turn is the next.
constexpr int kMaxReady = 64;

}  // namespace

struct StoreSockets::Connection {
  explicit Connection(int socket) : socket(socket) {}
  ~Connection() { close(socket); }

  const int socket;
  frames::FrameReader reader{kStoreFrameBytesMax};
  // It has shown the token.
  bool trusted = false;
  // Frames may be left in the reader.
  bool held = false;
  uint32_t watched = 0;
  // Requests read whose answer has not been written, and those of them that lie in `outgoing`.
  size_t unanswered = 0;
  size_t outgoing_answers = 0;
  std::string outgoing;
};

absl::StatusOr<std::unique_ptr<StoreSockets>> StoreSockets::Make(std::string token, int listener,
                                                                 std::function<int()> accept) {
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  if (epoll < 0) return absl::ErrnoToStatus(errno, "cannot make an epoll instance");
  std::unique_ptr<StoreSockets> sockets(
      new StoreSockets(epoll, std::move(token), std::move(accept)));
  epoll_event event = {};  // of no connection
  event.events = EPOLLIN;
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event) != 0) {
    return absl::ErrnoToStatus(errno, "cannot wait for workers");
  }
  return sockets;
}

StoreSockets::StoreSockets(int epoll, std::string token, std::function<int()> accept)
    : epoll_(epoll), token_(std::move(token)), accept_(std::move(accept)) {}

StoreSockets::~StoreSockets() {
  while (!connections_.empty()) {
    End(connections_.begin()->second.get(), absl::UnavailableError("the agent is leaving"));
  }
  close(epoll_);
}

void StoreSockets::Add(int socket) {
  auto connection = std::make_unique<Connection>(socket);
  epoll_event event = {};
  event.events = connection->watched = EPOLLIN;
  event.data.ptr = connection.get();
  Connection* const added = connection.get();
  connections_[socket] = std::move(connection);
  if (connections_.size() > kMaxStoreSockets) {
    return End(added, absl::ResourceExhaustedError(absl::StrCat(
                          "this agent serves ", kMaxStoreSockets, " clients already")));
  }
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, socket, &event) != 0) {
    End(added, absl::ErrnoToStatus(errno, "this agent cannot wait for one more client"));
  }
}

std::vector<v1::StoreRequest> StoreSockets::Read() {
  std::vector<v1::StoreRequest> requests;
  epoll_event events[kMaxReady];
  const int ready = epoll_wait(epoll_, events, kMaxReady, 0);
  for (int i = 0; i < ready; ++i) {
    auto* connection = static_cast<Connection*>(events[i].data.ptr);
    if (connection == nullptr) {
      for (int socket = accept_(); socket >= 0; socket = accept_()) Add(socket);
      continue;
    }
    const bool gone = (events[i].events & (EPOLLHUP | EPOLLERR)) != 0;
    if (gone || ((events[i].events & EPOLLOUT) != 0 && !Flush(connection))) {
      End(connection, absl::OkStatus());
      continue;
    }
    ReadFrom(connection, &requests);
  }
  return requests;
}

void StoreSockets::ReadFrom(Connection* connection, std::vector<v1::StoreRequest>* requests) {
  absl::Status status = TakeFrames(connection, requests);
  if (status.ok() && connection->unanswered < kMaxCallsPerSocket) {
    status = connection->reader.ReadFrom(connection->socket).status();
    if (status.ok()) status = TakeFrames(connection, requests);
  }
  if (!status.ok()) return End(connection, status);
  Watch(connection);
}

absl::Status StoreSockets::TakeFrames(Connection* connection,
                                      std::vector<v1::StoreRequest>* requests) {
  while (connection->unanswered < kMaxCallsPerSocket) {
    absl::string_view frame;
    ASSIGN_OR_RETURN(connection->held, connection->reader.Next(&frame));
    if (!connection->held) return absl::OkStatus();
    if (!connection->trusted) {
      if (!EqualConstantTime(frame, token_)) {
        return absl::UnauthenticatedError("the token is missing or wrong");
      }
      connection->trusted = true;
      continue;
    }
    v1::StoreRequest request;
    if (!request.ParseFromArray(frame.data(), static_cast<int>(frame.size()))) {
      return absl::InvalidArgumentError("what was sent is not a store request");
    }
    ++connection->unanswered;
    if (waiting_.size() >= kMaxSocketCalls) {
      Send(connection,
           StoreErrorReply(request, absl::ResourceExhaustedError(absl::StrCat(
                                        "this agent already has ", kMaxSocketCalls,
                                        " store operations waiting; try again later"))));
      continue;
    }
    waiting_.emplace(Key{request.client(), request.request_id()}, connection);
    requests->push_back(std::move(request));
  }
  return absl::OkStatus();
}

void StoreSockets::Answer(const v1::StoreReply& reply) {
  const auto range = waiting_.equal_range({reply.client(), reply.request_id()});
  if (range.first == range.second) return;
  std::vector<Connection*> askers;
  for (auto it = range.first; it != range.second; ++it) askers.push_back(it->second);
  waiting_.erase(range.first, range.second);
  for (Connection* asker : askers) {
    Send(asker, reply);
    Watch(asker);
  }
}

// One that is broken is ended by the next Read.
void StoreSockets::Send(Connection* connection, const v1::StoreReply& reply) {
  const bool idle = connection->outgoing.empty();
  AppendStoreFrame(reply, &connection->outgoing);
  ++connection->outgoing_answers;
  if (idle) Flush(connection);
}

bool StoreSockets::Flush(Connection* connection) {
  std::string& bytes = connection->outgoing;
  if (bytes.empty()) return true;
  const ssize_t sent =
      send(connection->socket, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0) return errno == EAGAIN || errno == EINTR;
  bytes.erase(0, static_cast<size_t>(sent));
  if (!bytes.empty()) return true;
  connection->unanswered -= std::exchange(connection->outgoing_answers, 0);
  return true;
}

void StoreSockets::Watch(Connection* connection) {
  const bool reads = connection->unanswered < kMaxCallsPerSocket;
  uint32_t wanted = 0;
  if (reads) wanted |= EPOLLIN;
  // What was read already is found as soon as there is room to write.
  if (!connection->outgoing.empty() || (reads && connection->held)) wanted |= EPOLLOUT;
  if (wanted == connection->watched) return;
  epoll_event event = {};
  event.events = connection->watched = wanted;
  event.data.ptr = connection;
  epoll_ctl(epoll_, EPOLL_CTL_MOD, connection->socket, &event);
}

void StoreSockets::End(Connection* connection, const absl::Status& why) {
  v1::StoreRequest none;
  if (!why.ok()) AppendStoreFrame(StoreErrorReply(none, why), &connection->outgoing);
  Flush(connection);
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    it = it->second == connection ? waiting_.erase(it) : std::next(it);
  }
  connections_.erase(connection->socket);
}

}  // namespace cadre
