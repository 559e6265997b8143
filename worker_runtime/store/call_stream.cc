#include "worker_runtime/store/call_stream.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/scoped_fd.h"
#include "base/status_macros.h"
#include "rpc/frames/frame_reader.h"
#include "rpc/frames/messages.h"
#include "worker_runtime/absl_types.h"
#include "worker_runtime/store/sealed_frames.h"

namespace cadre::store {
namespace {

// No call waits longer than this.
constexpr absl::Duration kForever = absl::Hours(24 * 365);

// Returns when the socket is ready, or no good, or the time is over.
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
  explicit Connection(Entry entry)
      : socket(std::move(entry.socket)),
        reader(rpc::kWorkerFrameBytesMax + (entry.keys ? SealedFrames::kMoreBytes : 0)) {
    if (entry.keys.has_value()) sealed.emplace(*std::move(entry.keys));
  }

  const ScopedFd socket;
  bool somebody_reads = false;
  // Of the one who does.
  frames::FrameReader reader;
  bool somebody_writes = false;
  // What has not been written.
  std::string outgoing;
  // Of an encrypted one.
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
  PassOn();
  RETURN_IF_ERROR(self.end.value_or(DeadlineExceededError("")));
  return std::move(self.reply);
}

void CallStream::Close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  if (connection_ == nullptr) return;
  // Whoever reads finds its end.
  shutdown(connection_->socket.get(), SHUT_RDWR);
  Break(connection_, CancelledError(""));
}

Status CallStream::Connect() {
  ASSIGN_OR_RETURN(Entry entry, connector_());
  auto connection = std::make_shared<Connection>(std::move(entry));
  if (token_.has_value()) frames::AppendFrame(*token_, &connection->outgoing);
  connection_ = std::move(connection);
  return OkStatus();
}

void CallStream::WriteAll(Clock::time_point deadline, std::unique_lock<std::mutex>* lock) {
  const std::shared_ptr<Connection> connection = connection_;
  // That thread writes what is there now, too.
  if (connection->somebody_writes) return;
  connection->somebody_writes = true;
  std::string& bytes = connection->outgoing;
  while (!bytes.empty() && connection == connection_) {
    const ssize_t sent = send(connection->socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.erase(0, static_cast<size_t>(sent));
    } else if (errno != EAGAIN && errno != EINTR) {
      // The end of what is read tells why.
      bytes.clear();
    } else if (Clock::now() < deadline) {
      lock->unlock();
      WaitFor(connection->socket.get(), POLLOUT, deadline);
      lock->lock();
    } else {
      // Nobody else would write the rest.
      Break(connection, UnavailableError("the agent does not read"));
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
  // Somebody has found out before that it is no good.
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
    // One that had no time left.
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

void CallStream::PassOn() {
  if (waiters_.empty() || connection_->somebody_reads) return;
  waiters_.begin()->second->woken.notify_one();
}

}  // namespace cadre::store
