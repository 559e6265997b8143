// The socket to a worker's agent.
#ifndef CADRE_WORKER_RUNTIME_STORE_CONNECT_SOCKET_H_
#define CADRE_WORKER_RUNTIME_STORE_CONNECT_SOCKET_H_

#include <string>

#include "cadre/result.h"

namespace cadre::store {

// A non-blocking socket, which the caller closes. UNAVAILABLE: nobody listens there.
Result<int> ConnectToUnixSocket(const std::string& path);

}  // namespace cadre::store

#endif  // CADRE_WORKER_RUNTIME_STORE_CONNECT_SOCKET_H_
