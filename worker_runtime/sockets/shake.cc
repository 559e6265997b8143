#include "worker_runtime/sockets/shake.h"

#include <errno.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace cadre::sockets {

Result<std::string> HandshakeNonce() {
  std::string nonce(kNonceBytes, '\0');
  if (getrandom(&nonce[0], kNonceBytes, 0) == static_cast<ssize_t>(kNonceBytes)) return nonce;
  return InternalError(absl::StrCat("no random bytes: ", ErrnoText(errno)));
}

Shaken Shake(int socket, Handshake& handshake, std::string& received) {
  while (true) {
    std::string& output = handshake.output();
    if (!output.empty()) {
      const ssize_t sent = send(socket, output.data(), output.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN && errno != EINTR) return {Progress::kLost, errno, {}};
      if (sent > 0) output.erase(0, static_cast<size_t>(sent));
      if (!output.empty()) return {};
    }
    if (handshake.is_done()) return {Progress::kDone, 0, {}};
    // Not a byte more than that: what follows the handshake is not ours.
    char bytes[256];
    const ssize_t got =
        recv(socket, bytes, std::min(sizeof(bytes), handshake.wanted() - received.size()), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return {};
    if (got <= 0) return {Progress::kLost, got == 0 ? 0 : errno, {}};
    received.append(bytes, static_cast<size_t>(got));
    if (received.size() < handshake.wanted()) continue;
    const Status status = handshake.Receive(std::exchange(received, ""));
    if (!status.ok()) return {Progress::kRefused, 0, status};
  }
}

}  // namespace cadre::sockets
