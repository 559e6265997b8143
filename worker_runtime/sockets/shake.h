// A handshake on a socket that does not block.
#ifndef CADRE_WORKER_RUNTIME_SOCKETS_SHAKE_H_
#define CADRE_WORKER_RUNTIME_SOCKETS_SHAKE_H_

#include <string>

#include "cadre/result.h"
#include "cadre/status.h"
#include "worker_runtime/sockets/handshake.h"

namespace cadre::sockets {

// Random bytes for one handshake. INTERNAL: the kernel has none.
Result<std::string> HandshakeNonce();

enum class Progress {
  kWaits,    // to write while the handshake has output, else to read
  kDone,     // both sides have proved themselves
  kLost,     // the connection is over
  kRefused,  // the other side said what it must not
};
struct Shaken {
  Progress progress = Progress::kWaits;
  int error = 0;   // of kLost: errno; 0: the other side closed it
  Status refusal;  // of kRefused: as Handshake::Receive() has it
};

// Goes on with the handshake as far as it goes without waiting, and reads not a byte beyond it.
// `received` is what this keeps between two calls for one socket.
Shaken Shake(int socket, Handshake& handshake, std::string& received);

}  // namespace cadre::sockets

#endif  // CADRE_WORKER_RUNTIME_SOCKETS_SHAKE_H_
