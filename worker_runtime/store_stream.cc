#include "worker_runtime/store_stream.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "rpc/frames/store_frames.h"

namespace cadre {
namespace {

// Returns when the socket is ready, or no good, or the time is over.
void WaitFor(int socket, short what, std::chrono::steady_clock::time_point deadline) {
  using std::chrono::nanoseconds;
  const int64_t left =
      std::max<int64_t>(0, nanoseconds(deadline - std::chrono::steady_clock::now()).count());
  const timespec timeout = {left / 1000000000, left % 1000000000};
  pollfd wait = {socket, what, 0};
  ppoll(&wait, 1, &timeout, nullptr);
}

absl::Status NoConnection(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", strerror(errno)));
}

}  // namespace

struct StoreStream::Connection {
  explicit Connection(int socket) : socket(socket) {}
  ~Connection() { close(socket); }

  const int socket;
  bool somebody_reads = false;
  // Of the one who does.
  frames::FrameReader reader{kStoreFrameBytesMax};
  bool somebody_writes = false;
  // What has not been written.
  std::string outgoing;
};

StoreStream::StoreStream(const std::string& agent_socket, const std::string& token)
    : path_(StoreSocketPath(agent_socket)), token_(token) {}

StoreStream::~StoreStream() = default;

absl::Status StoreStream::Execute(const v1::StoreRequest& request, absl::Duration limit,
                                  v1::StoreReply* reply) {
  const Clock::time_point deadline = Clock::now() + absl::ToChronoMicroseconds(limit);
  std::unique_lock<std::mutex> lock(mutex_);
  if (connection_ == nullptr) RETURN_IF_ERROR(Connect());
  Waiter self{reply, std::nullopt, {}};
  waiters_.emplace(request.request_id(), &self);
  AppendStoreFrame(request, &connection_->outgoing);
  WriteAll(deadline, &lock);
  while (!self.end.has_value() && Clock::now() < deadline) {
    if (connection_->somebody_reads) {
      self.woken.wait_until(lock, deadline);
    } else {
      ReadFor(deadline, &lock);
    }
  }
  if (!self.end.has_value()) waiters_.erase(request.request_id());
  PassOn();
  return self.end.value_or(absl::DeadlineExceededError(""));
}

absl::Status StoreStream::Connect() {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path_.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("socket path ", path_, " is too long"));
  }
  memcpy(address.sun_path, path_.data(), path_.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return NoConnection("no socket");
  auto connection = std::make_shared<Connection>(fd);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0)
    return NoConnection(path_);
  frames::AppendFrame(token_, &connection->outgoing);
  connection_ = std::move(connection);
  return absl::OkStatus();
}

void StoreStream::WriteAll(Clock::time_point deadline, std::unique_lock<std::mutex>* lock) {
  const std::shared_ptr<Connection> connection = connection_;
  // He writes what is there now, too.
  if (connection->somebody_writes) return;
  connection->somebody_writes = true;
  std::string& bytes = connection->outgoing;
  while (!bytes.empty() && connection == connection_) {
    const ssize_t sent = send(connection->socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.erase(0, static_cast<size_t>(sent));
    } else if (errno != EAGAIN && errno != EINTR) {
      // The end of what is read tells why.
      bytes.clear();
    } else if (Clock::now() < deadline) {
      lock->unlock();
      WaitFor(connection->socket, POLLOUT, deadline);
      lock->lock();
    } else {
      // Nobody else would write the rest.
      Break(connection, absl::UnavailableError("the agent does not read"));
    }
  }
  connection->somebody_writes = false;
}

void StoreStream::ReadFor(Clock::time_point deadline, std::unique_lock<std::mutex>* lock) {
  const std::shared_ptr<Connection> connection = connection_;
  connection->somebody_reads = true;
  lock->unlock();
  WaitFor(connection->socket, POLLIN, deadline);
  const absl::StatusOr<bool> read = connection->reader.ReadFrom(connection->socket);
  lock->lock();
  connection->somebody_reads = false;
  // Somebody has found out before that it is no good.
  if (connection != connection_) return;
  const absl::Status status = read.ok() ? Answer(*connection) : read.status();
  if (!status.ok()) Break(connection, status);
}

absl::Status StoreStream::Answer(Connection& connection) {
  for (;;) {
    absl::string_view frame;
    ASSIGN_OR_RETURN(const bool found, connection.reader.Next(&frame));
    if (!found) return absl::OkStatus();
    v1::StoreReply reply;
    if (!reply.ParseFromArray(frame.data(), static_cast<int>(frame.size()))) {
      return absl::InternalError("what the agent sends is not an answer");
    }
    if (reply.request_id() == 0) {
      return absl::Status(static_cast<absl::StatusCode>(reply.code()), reply.message());
    }
    const auto waiter = waiters_.find(reply.request_id());
    // One that had no time left.
    if (waiter == waiters_.end()) continue;
    *waiter->second->reply = std::move(reply);
    waiter->second->end = absl::OkStatus();
    waiter->second->woken.notify_one();
    waiters_.erase(waiter);
  }
}

void StoreStream::Break(const std::shared_ptr<Connection>& connection, const absl::Status& why) {
  if (connection != connection_) return;
  connection_.reset();
  for (const auto& [id, waiter] : waiters_) {
    waiter->end = why;
    waiter->woken.notify_one();
  }
  waiters_.clear();
}

void StoreStream::PassOn() {
  if (waiters_.empty() || connection_->somebody_reads) return;
  waiters_.begin()->second->woken.notify_one();
}

}  // namespace cadre
