#include "rpc/frames/frame_server.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/token.h"
#include "rpc/frames/frame_reader.h"

namespace cadre::frames {
namespace {

// The connections that one Read handles; the others come next time.
constexpr int kMaxReady = 64;
// The listener's number in epoll events.
constexpr uint64_t kListener = 0;

int Duplicate(int fd) { return fcntl(fd, F_DUPFD_CLOEXEC, 0); }

}  // namespace

struct FrameServer::Connection {
  Connection(uint64_t number, int socket, size_t max_frame_bytes)
      : number(number), socket(socket), reader(max_frame_bytes) {}
  ~Connection() { close(socket); }

  const uint64_t number;
  const int socket;
  FrameReader reader;
  // It has sent the token.
  bool trusted = false;
  // The reader may hold complete frames.
  bool held = false;
  uint32_t watched = 0;
  // Frames without a written answer, and how many of their answers are in `outgoing`.
  size_t unanswered = 0;
  size_t outgoing_answers = 0;
  std::string outgoing;
};

absl::StatusOr<std::unique_ptr<FrameServer>> FrameServer::Make(Options options) {
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  if (epoll < 0) return absl::ErrnoToStatus(errno, "cannot make an epoll instance");
  std::unique_ptr<FrameServer> server(new FrameServer(std::move(options), epoll));
  RETURN_IF_ERROR(server->ListenAt(server->options_.listener));
  return server;
}

absl::Status FrameServer::ListenAt(int listener) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = kListener;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, listener, &event) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, "cannot wait for workers");
}

FrameServer::FrameServer(Options options, int epoll)
    : options_(std::move(options)), epoll_(epoll), spare_(Duplicate(epoll)) {}

FrameServer::~FrameServer() {
  while (!connections_.empty()) {
    End(connections_.begin()->second.get(),
        absl::UnavailableError(absl::StrCat(options_.name, " is shutting down")));
  }
  close(epoll_);
}

// Without free descriptors the listener would stay readable and its owner's loop would spin. So the
// connection is accepted with the spare descriptor, refused and closed.
void FrameServer::Accept() {
  for (;;) {
    errno = 0;
    int socket = options_.accept(last_number_ + 1);
    absl::Status refused;
    if (socket < 0 && (errno == EMFILE || errno == ENFILE)) {
      refused = absl::ResourceExhaustedError(
          absl::StrCat(options_.name, " has no more file descriptors (ulimit -n)"));
      spare_.Reset();
      socket = options_.accept(last_number_ + 1);
    }
    if (socket >= 0) Add(socket, refused);
    if (!spare_.ok()) spare_.Reset(Duplicate(epoll_));
    if (socket < 0) return;
  }
}

void FrameServer::Add(int socket, const absl::Status& refused) {
  const uint64_t number = ++last_number_;
  Connection* const added =
      connections_
          .emplace(number, std::make_unique<Connection>(number, socket, options_.max_frame_bytes))
          .first->second.get();
  added->trusted = !options_.token.has_value();
  if (!refused.ok()) return End(added, refused);
  if (connections_.size() > options_.max_connections) {
    return End(added, absl::ResourceExhaustedError(absl::StrCat(options_.name, " already serves ",
                                                                options_.max_connections,
                                                                " clients, which is the limit")));
  }
  epoll_event event = {};
  event.events = added->watched = EPOLLIN;
  event.data.u64 = number;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, socket, &event) != 0) {
    End(added, absl::ErrnoToStatus(
                   errno, absl::StrCat(options_.name, " cannot wait for one more client")));
  }
}

void FrameServer::Read() {
  epoll_event events[kMaxReady];
  const int ready = epoll_wait(epoll_, events, kMaxReady, 0);
  for (int i = 0; i < ready; ++i) {
    if (events[i].data.u64 == kListener) {
      Accept();
      continue;
    }
    const auto found = connections_.find(events[i].data.u64);
    if (found == connections_.end()) continue;
    Connection* const connection = found->second.get();
    const bool gone = (events[i].events & (EPOLLHUP | EPOLLERR)) != 0;
    if (gone || ((events[i].events & EPOLLOUT) != 0 && !Flush(connection))) {
      End(connection, absl::OkStatus());
      continue;
    }
    ReadFrom(connection);
  }
}

void FrameServer::ReadFrom(Connection* connection) {
  absl::Status status = TakeFrames(connection);
  if (status.ok() && connection->unanswered < options_.max_unanswered) {
    status = connection->reader.ReadFrom(connection->socket).status();
    if (status.ok()) status = TakeFrames(connection);
  }
  if (!status.ok()) return End(connection, status);
  Watch(connection);
}

absl::Status FrameServer::TakeFrames(Connection* connection) {
  while (connection->unanswered < options_.max_unanswered) {
    absl::string_view content;
    ASSIGN_OR_RETURN(connection->held, connection->reader.Next(&content));
    if (!connection->held) return absl::OkStatus();
    if (!connection->trusted) {
      if (!EqualConstantTime(content, *options_.token)) {
        return absl::UnauthenticatedError(
            "the token is missing or wrong: send the content of CADRE_TOKEN_FILE");
      }
      connection->trusted = true;
      continue;
    }
    ++connection->unanswered;
    RETURN_IF_ERROR(options_.on_frame(connection->number, content));
  }
  return absl::OkStatus();
}

void FrameServer::Answer(uint64_t number, absl::string_view frame) {
  const auto found = connections_.find(number);
  if (found == connections_.end()) return;
  Connection* const connection = found->second.get();
  const bool idle = connection->outgoing.empty();
  connection->outgoing.append(frame.data(), frame.size());
  ++connection->outgoing_answers;
  // If the connection is broken, the next Read ends it.
  if (idle) Flush(connection);
  Watch(connection);
}

bool FrameServer::Flush(Connection* connection) {
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

void FrameServer::Watch(Connection* connection) {
  const bool reads = connection->unanswered < options_.max_unanswered;
  uint32_t wanted = 0;
  if (reads) wanted |= EPOLLIN;
  // Frames that were read already are taken as soon as there is room to write.
  if (!connection->outgoing.empty() || (reads && connection->held)) wanted |= EPOLLOUT;
  if (wanted == connection->watched) return;
  epoll_event event = {};
  event.events = connection->watched = wanted;
  event.data.u64 = connection->number;
  epoll_ctl(epoll_, EPOLL_CTL_MOD, connection->socket, &event);
}

void FrameServer::End(Connection* connection, const absl::Status& why) {
  if (!why.ok()) connection->outgoing += options_.farewell(connection->number, why);
  Flush(connection);
  const uint64_t number = connection->number;
  connections_.erase(number);
  options_.on_end(number);
}

}  // namespace cadre::frames
