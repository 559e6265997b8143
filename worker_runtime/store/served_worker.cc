// A worker whose store rank 0 serves: resolves its address, authenticates and calls.
#include "worker_runtime/store/served_worker.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/scoped_fd.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "cadre/status.h"
#include "worker_runtime/sockets/handshake.h"
#include "worker_runtime/sockets/tcp_socket.h"
#include "worker_runtime/wire/connection.h"

namespace cadre::store {
ServedWorker::ServedWorker(const StoreAddress& at, std::string server, const WorkerPlace& place)
    : at_(at),
      server_(std::move(server)),
      rank_(place.rank),
      calls_([this] { return Connect(); }, std::nullopt) {
  MoveTo(place);
}

Result<StoreConnection> ServedWorker::Connect() {
  ASSIGN_OR_RETURN(StoreConnection connection, ConnectToStore(at_, rank_));
  const std::lock_guard<std::mutex> lock(mutex_);
  local_address_ = sockets::AddressOf(connection.socket.get());
  return connection;
}

std::string ServedWorker::local_address() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return local_address_;
}

Result<keyspace::Reply> ServedWorker::Send(keyspace::Request request) {
  const absl::Duration limit = absl::Milliseconds(request.wait_ms) + kCallMargin;
  Result<rpc::WorkerReply> reply = calls_.Call(CallOf(std::move(request)), limit);
  if (reply.ok()) return ReplyOf(*std::move(reply));
  const Status status = reply.status();
  const std::string who = absl::StrCat(server_, ", which serves the store at ", at_.endpoint, ", ");
  if (status.code() == StatusCode::kUnavailable) {
    return UnavailableError(absl::StrCat(who, "cannot be reached: ", status.message()));
  }
  if (status.code() != StatusCode::kDeadlineExceeded) return status;
  return DeadlineExceededError(
      absl::StrCat(who, "did not answer within ", absl::FormatDuration(limit)));
}

namespace {

// TCP keepalive: a silent peer is probed after kSilenceSeconds, and the connection fails when it
// has not answered for kNoAnswerMillis.
constexpr int kSilenceSeconds = 10;
constexpr unsigned kNoAnswerMillis = 15000;

void DetectSilentPeer(const ScopedFd& socket) {
  setsockopt(socket.get(), IPPROTO_TCP, TCP_KEEPIDLE, &kSilenceSeconds, sizeof(kSilenceSeconds));
  setsockopt(socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &kNoAnswerMillis,
             sizeof(kNoAnswerMillis));
}

}  // namespace

Result<StoreConnection> ConnectToStore(const StoreAddress& at, int rank) {
  const MonoTime deadline = MonoNow() + kStoreConnectTimeout;
  ASSIGN_OR_RETURN(const bool encrypts, wire::WantsEncryption());
  ASSIGN_OR_RETURN(ScopedFd socket, sockets::ConnectBefore(deadline, at.endpoint));
  DetectSilentPeer(socket);
  ASSIGN_OR_RETURN(std::string nonce, sockets::HandshakeNonce());
  sockets::Handshake handshake = sockets::Handshake::Call(
      {at.key, encrypts}, rank, sockets::kStoreRank, sockets::Purpose::kStore, std::move(nonce));
  std::string received;
  while (true) {
    const sockets::HandshakeResult result = AdvanceHandshake(socket.get(), handshake, received);
    switch (result.progress) {
      case sockets::Progress::kDone:
        RETURN_IF_ERROR(handshake.CheckEncryption());
        return StoreConnection(std::move(socket), handshake.MakeRecordKeys());
      case sockets::Progress::kLost:
        return UnavailableError(
            absl::StrCat(at.endpoint, " ended the connection",
                         result.error == 0 ? "" : absl::StrCat(": ", ErrnoText(result.error))));
      case sockets::Progress::kRefused:
        return PermissionDeniedError(absl::StrCat(
            "the process that listens at ", at.endpoint,
            " does not know the secret of these ranks: CADRE_SECRET_FILE must have the same "
            "content "
            "for all of them (without it they must be one user's, with the same XDG_RUNTIME_DIR), "
            "and no other program may listen there"));
      case sockets::Progress::kWaits:
        break;
    }
    const short what = handshake.output().empty() ? POLLIN : POLLOUT;
    if (!sockets::AwaitEvent(socket, what, deadline)) {
      return UnavailableError(absl::StrCat(at.endpoint, " did not answer within ",
                                           absl::FormatDuration(kStoreConnectTimeout)));
    }
  }
}

}  // namespace cadre::store
