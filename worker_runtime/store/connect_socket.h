// The socket to a worker's agent.
#ifndef CADRE_WORKER_RUNTIME_STORE_CONNECT_SOCKET_H_
#define CADRE_WORKER_RUNTIME_STORE_CONNECT_SOCKET_H_

#include <string>

#include "base/scoped_fd.h"
#include "cadre/result.h"

namespace cadre::store {

// A non-blocking socket. UNAVAILABLE: nobody listens there.
Result<ScopedFd> ConnectToUnixSocket(const std::string& path);

}  // namespace cadre::store

#endif  // CADRE_WORKER_RUNTIME_STORE_CONNECT_SOCKET_H_
