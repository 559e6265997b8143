// Calls and replies in frames, encrypted or not, over one connection.
#include "worker_runtime/store/call_stream.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/scoped_fd.h"
#include "base/status_macros.h"
#include "rpc/frames/codec.h"
#include "rpc/frames/frame_reader.h"
#include "worker_runtime/absl_types.h"

namespace cadre::store {
namespace {

// No call waits longer than this.
constexpr absl::Duration kForever = absl::Hours(24 * 365);

// Returns when the socket is ready or broken, or at the deadline.
void WaitFor(int socket, short what, std::chrono::steady_clock::time_point deadline) {
  using std::chrono::nanoseconds;
  const int64_t left =
      std::max<int64_t>(0, nanoseconds(deadline - std::chrono::steady_clock::now()).count());
  const timespec timeout = {left / 1000000000, left % 1000000000};
  pollfd wait = {socket, what, 0};
  ppoll(&wait, 1, &timeout, nullptr);
}

}  // namespace

struct CallStream::Connection {
  explicit Connection(StoreConnection entry)
      : socket(std::move(entry.socket)),
        reader(rpc::kWorkerFrameBytesMax + (entry.keys ? SealedFrames::kMoreBytes : 0)) {
    if (entry.keys.has_value()) sealed.emplace(*std::move(entry.keys));
  }

  const ScopedFd socket;
  bool somebody_reads = false;
  // Used only by the caller that reads.
  frames::FrameReader reader;
  bool somebody_writes = false;
  // Bytes that have not been written.
  std::string outgoing;
  // Set if the connection is encrypted.
  std::optional<SealedFrames> sealed;
};

CallStream::CallStream(Connector connector, std::optional<std::string> token)
    : connector_(std::move(connector)), token_(std::move(token)) {}

CallStream::~CallStream() = default;

Result<rpc::WorkerReply> CallStream::Call(const rpc::WorkerCall& call, absl::Duration limit) {
  const Clock::time_point deadline =
      Clock::now() + absl::ToChronoMicroseconds(std::min(limit, kForever));
  std::unique_lock<std::mutex> lock(mutex_);
  if (closed_) return CancelledError("");
  if (connection_ == nullptr) RETURN_IF_ERROR(Connect());
  Waiter self;
  waiters_.emplace(call.id, &self);
  std::string frame;
  frames::AppendMessage(call, &frame);
  connection_->outgoing +=
      connection_->sealed ? connection_->sealed->Seal(std::move(frame)) : frame;
  WriteAll(deadline, &lock);
  while (!self.end.has_value() && Clock::now() < deadline) {
    if (connection_->somebody_reads) {
      self.woken.wait_until(lock, deadline);
    } else {
      ReadFor(deadline, &lock);
    }
  }
  if (!self.end.has_value()) waiters_.erase(call.id);
  HandOverReading();
  RETURN_IF_ERROR(self.end.value_or(DeadlineExceededError("")));
  return std::move(self.reply);
}

void CallStream::Close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  if (connection_ == nullptr) return;
  // The caller that reads finds the end of the connection.
  shutdown(connection_->socket.get(), SHUT_RDWR);
  Break(connection_, CancelledError(""));
}

Status CallStream::Connect() {
  ASSIGN_OR_RETURN(StoreConnection entry, connector_());
  auto connection = std::make_shared<Connection>(std::move(entry));
  if (token_.has_value()) frames::AppendFrame(*token_, &connection->outgoing);
  connection_ = std::move(connection);
  return OkStatus();
}

void CallStream::WriteAll(Clock::time_point deadline, std::unique_lock<std::mutex>* lock) {
  const std::shared_ptr<Connection> connection = connection_;
  // That thread writes these bytes, too.
  if (connection->somebody_writes) return;
  connection->somebody_writes = true;
  std::string& bytes = connection->outgoing;
  while (!bytes.empty() && connection == connection_) {
    const ssize_t sent = send(connection->socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.erase(0, static_cast<size_t>(sent));
    } else if (errno != EAGAIN && errno != EINTR) {
      // Reading will return the reason.
      bytes.clear();
    } else if (Clock::now() < deadline) {
      lock->unlock();
      WaitFor(connection->socket.get(), POLLOUT, deadline);
      lock->lock();
    } else {
      // No other caller would write the rest.
      Break(connection, UnavailableError("the agent does not read what this process sends"));
    }
  }
  connection->somebody_writes = false;
}

void CallStream::ReadFor(Clock::time_point deadline, std::unique_lock<std::mutex>* lock) {
  const std::shared_ptr<Connection> connection = connection_;
  connection->somebody_reads = true;
  lock->unlock();
  WaitFor(connection->socket.get(), POLLIN, deadline);
  const absl::StatusOr<bool> read = connection->reader.ReadFrom(connection->socket.get());
  lock->lock();
  connection->somebody_reads = false;
  // Another caller has closed this connection before.
  if (connection != connection_) return;
  const Status status = read.ok() ? Answer(*connection) : Status(read.status());
  if (!status.ok()) Break(connection, status);
}

Status CallStream::Answer(Connection& connection) {
  for (;;) {
    absl::string_view frame;
    ASSIGN_OR_RETURN(const bool found, connection.reader.Next(&frame));
    if (!found) return OkStatus();
    std::string opened;
    if (connection.sealed.has_value()) {
      ASSIGN_OR_RETURN(opened, connection.sealed->Open(frame));
      frame = opened;
    }
    absl::StatusOr<rpc::WorkerReply> reply = frames::ParseMessage<rpc::WorkerReply>(frame);
    if (!reply.ok()) return InternalError("what the agent sends is not an answer");
    if (reply->id == 0) return reply->status();
    const auto waiter = waiters_.find(reply->id);
    // This call has timed out.
    if (waiter == waiters_.end()) continue;
    waiter->second->reply = *std::move(reply);
    waiter->second->end = OkStatus();
    waiter->second->woken.notify_one();
    waiters_.erase(waiter);
  }
}

void CallStream::Break(const std::shared_ptr<Connection>& connection, const Status& why) {
  if (connection != connection_) return;
  connection_.reset();
  for (const auto& [id, waiter] : waiters_) {
    waiter->end = why;
    waiter->woken.notify_one();
  }
  waiters_.clear();
}

void CallStream::HandOverReading() {
  if (waiters_.empty() || connection_->somebody_reads) return;
  waiters_.begin()->second->woken.notify_one();
}

SealedFrames::SealedFrames(wire::RecordKeys keys)
    : outgoing_(std::move(keys.outgoing), wire::RecordCipher::Use::kSeal),
      incoming_(std::move(keys.incoming), wire::RecordCipher::Use::kOpen) {}

std::string SealedFrames::Seal(std::string frame) {
  const size_t bytes = frame.size() - frames::kLengthBytes;
  frame.resize(frame.size() + kMoreBytes);
  char* const content = &frame[frames::kLengthBytes];
  outgoing_.Begin("");
  outgoing_.Update(content, content, bytes);
  outgoing_.MakeTag(content + bytes);
  frames::CloseFrame(0, &frame);
  return frame;
}

Result<std::string> SealedFrames::Open(absl::string_view content) {
  const Status altered = UnavailableError(wire::kAlteredText);
  if (content.size() < kMoreBytes) return altered;
  std::string opened(content.size() - kMoreBytes, '\0');
  incoming_.Begin("");
  incoming_.Update(&opened[0], content.data(), opened.size());
  if (!incoming_.HasTag(&content[opened.size()])) return altered;
  return opened;
}

namespace {

Status NoConnection(absl::string_view what, int error) {
  return UnavailableError(absl::StrCat(what, ": ", strerror(error)));
}

}  // namespace

Result<ScopedFd> ConnectToUnixSocket(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return InvalidArgumentError(absl::StrCat("socket path ", path, " is too long"));
  }
  memcpy(address.sun_path, path.data(), path.size());
  ScopedFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.ok()) return NoConnection("no socket", errno);
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) return fd;
  return NoConnection(path, errno);
}

}  // namespace cadre::store
