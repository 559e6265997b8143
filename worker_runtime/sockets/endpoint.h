// TCP sockets, and the addresses by which ranks name them to each other: IPv4 and IPv6.
#ifndef CADRE_WORKER_RUNTIME_SOCKETS_ENDPOINT_H_
#define CADRE_WORKER_RUNTIME_SOCKETS_ENDPOINT_H_

#include <cstdint>
#include <string>

#include "base/scoped_fd.h"
#include "base/time.h"
#include "cadre/result.h"

namespace cadre::sockets {

// A non-blocking socket that listens at this address (or name) of the machine, on a free port or on
// `port`, also where connections of an earlier listener are not quite over there. UNAVAILABLE: it
// cannot be; says why.
Result<ScopedFd> Listen(const std::string& address, uint16_t port = 0);

// Of a listening socket: "10.0.0.1:4567", "[fe80::1%eth0]:4567".
std::string EndpointOf(const ScopedFd& listener);
// This machine's own address, of any socket: "10.0.0.1", "fe80::1%eth0".
std::string AddressOf(int socket);

// A non-blocking socket that is being connected; it can be written when that is over.
// INVALID_ARGUMENT: not as EndpointOf() says it. UNAVAILABLE: it cannot be; says why.
Result<ScopedFd> StartConnecting(const std::string& endpoint);

// As above, and waits until it is connected. UNAVAILABLE: also when it is not by `deadline`.
Result<ScopedFd> ConnectBefore(MonoTime deadline, const std::string& endpoint);

// What went wrong with the socket since this was last asked, as errno says it; 0: nothing.
int ErrorOf(const ScopedFd& socket);

// What is sent leaves at once, and a silent peer whose machine is gone is noticed within a minute.
void SetUp(const ScopedFd& socket);
// Also one that was sent something which its machine never took. Not for data: a peer that lives
// may take that as late as it likes, and is lost all the same (TCP_USER_TIMEOUT in tcp(7)).
void NoticeUntaken(const ScopedFd& socket);

// For poll(): whole milliseconds until `deadline`, rounded up; `limit` at most, 0 if it has passed.
int MillisUntil(MonoTime deadline, int limit);

// Waits until the socket can do one of `events` (POLLIN, POLLOUT), or is over. False: not before
// `deadline`.
bool AwaitEvent(const ScopedFd& socket, short events, MonoTime deadline);

}  // namespace cadre::sockets

#endif  // CADRE_WORKER_RUNTIME_SOCKETS_ENDPOINT_H_
