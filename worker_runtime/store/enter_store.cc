#include "worker_runtime/store/enter_store.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/scoped_fd.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "worker_runtime/sockets/endpoint.h"
#include "worker_runtime/sockets/handshake.h"
#include "worker_runtime/sockets/shake.h"
#include "worker_runtime/wire/encryption.h"

namespace cadre::store {
namespace {

// A silent peer is asked after this long, and given up when it has not answered for so long.
constexpr int kSilenceSeconds = 10;
constexpr unsigned kNoAnswerMillis = 15000;

void NoticeASilentPeer(const ScopedFd& socket) {
  setsockopt(socket.get(), IPPROTO_TCP, TCP_KEEPIDLE, &kSilenceSeconds, sizeof(kSilenceSeconds));
  setsockopt(socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &kNoAnswerMillis,
             sizeof(kNoAnswerMillis));
}

}  // namespace

Result<Entry> EnterStore(const StoreAddress& at, int rank) {
  const MonoTime deadline = MonoNow() + kEnterTimeout;
  ASSIGN_OR_RETURN(const bool encrypts, wire::WantsEncryption());
  ASSIGN_OR_RETURN(ScopedFd socket, sockets::ConnectBefore(deadline, at.endpoint));
  NoticeASilentPeer(socket);
  ASSIGN_OR_RETURN(std::string nonce, sockets::HandshakeNonce());
  sockets::Handshake handshake = sockets::Handshake::Call(
      {at.key, encrypts}, rank, sockets::kStoreRank, sockets::Purpose::kStore, std::move(nonce));
  std::string received;
  while (true) {
    const sockets::Shaken shaken = Shake(socket.get(), handshake, received);
    switch (shaken.progress) {
      case sockets::Progress::kDone:
        RETURN_IF_ERROR(handshake.CheckTerms());
        return Entry(std::move(socket), handshake.MakeRecordKeys());
      case sockets::Progress::kLost:
        return UnavailableError(
            absl::StrCat(at.endpoint, " ended the connection",
                         shaken.error == 0 ? "" : absl::StrCat(": ", ErrnoText(shaken.error))));
      case sockets::Progress::kRefused:
        return PermissionDeniedError(absl::StrCat(
            "who listens at ", at.endpoint,
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
                                           absl::FormatDuration(kEnterTimeout)));
    }
  }
}

}  // namespace cadre::store
