// Sockets to those who serve a worker.
#ifndef CADRE_WORKER_RUNTIME_STORE_CONNECT_SOCKET_H_
#define CADRE_WORKER_RUNTIME_STORE_CONNECT_SOCKET_H_

#include <string>

#include "cadre/result.h"

namespace cadre::store {

// Both give a non-blocking socket, which the caller closes. UNAVAILABLE: nobody listens there.
Result<int> ConnectToUnixSocket(const std::string& path);
// Waits up to 5 s for a connection to "10.0.0.1:4567". A peer whose machine has gone is noticed
// within 15 s.
Result<int> ConnectToAddress(const std::string& endpoint);

// A listening socket, non-blocking, at this address of the machine (no name) on a port that is
// free. UNAVAILABLE: it cannot be.
Result<int> ListenAt(const std::string& address);
// "10.0.0.1:4567", of a listening socket.
std::string EndpointOf(int listener);

}  // namespace cadre::store

#endif  // CADRE_WORKER_RUNTIME_STORE_CONNECT_SOCKET_H_
