// TCP sockets, and the addresses by which ranks find each other (IPv4 and IPv6): of listening
// sockets, of hosts by name, and of this machine.
#ifndef CADRE_WORKER_RUNTIME_SOCKETS_TCP_SOCKET_H_
#define CADRE_WORKER_RUNTIME_SOCKETS_TCP_SOCKET_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/scoped_fd.h"
#include "base/time.h"
#include "cadre/result.h"

namespace cadre::sockets {

// Returns a non-blocking socket that listens at this address (or name) of the machine, on a free
// port or on `port`. `port` may still have connections of an earlier listener (SO_REUSEADDR).
// UNAVAILABLE: it cannot listen; the text gives the reason.
Result<ScopedFd> Listen(const std::string& address, uint16_t port = 0);

// Returns the endpoint of a listening socket, such as "10.0.0.1:4567" or "[fe80::1%eth0]:4567".
std::string EndpointOf(const ScopedFd& listener);
// Returns the local address of any socket, such as "10.0.0.1" or "fe80::1%eth0".
std::string AddressOf(int socket);

// Returns a non-blocking socket that is connecting; it becomes writable when that has ended.
// INVALID_ARGUMENT: `endpoint` lacks EndpointOf()'s form. UNAVAILABLE: it cannot connect; the text
// gives the reason.
Result<ScopedFd> StartConnecting(const std::string& endpoint);

// Does the same and waits until it is connected. UNAVAILABLE also if it is not by `deadline`.
Result<ScopedFd> ConnectBefore(MonoTime deadline, const std::string& endpoint);

// Returns the socket's pending error as an errno value and clears it; 0 if there is none.
int ErrorOf(const ScopedFd& socket);

// Makes data leave without delay, and a silent peer whose machine is down noticed within a minute.
void ConfigureSocket(const ScopedFd& socket);
// Also detects a peer whose machine never acknowledged what was sent. Not for data connections: a
// live peer may read data arbitrarily late and would be lost too (TCP_USER_TIMEOUT in tcp(7)).
void DetectUnacknowledgedData(const ScopedFd& socket);

// Returns a timeout for poll(): the milliseconds until `deadline`, rounded up, from 0 to `limit`.
int MillisUntil(MonoTime deadline, int limit);

// Waits until the socket is ready for one of `events` (POLLIN, POLLOUT) or has ended. Returns false
// if that did not happen before `deadline`.
bool AwaitEvent(const ScopedFd& socket, short events, MonoTime deadline);

inline constexpr char kLoopback[] = "127.0.0.1";

// Returns at least one numeric address; uses the system's resolver, which has its own time limits.
// UNAVAILABLE: the name cannot be resolved.
Result<std::vector<std::string>> AddressesOf(const std::string& host);

// "127.0.0.1", "::1" and their like.
bool IsLoopback(absl::string_view address);
// Whether the name can mean only loopback: "localhost", or a loopback address.
bool NamesLoopback(absl::string_view host);
// Whether it is an address of this machine.
bool IsOwn(const std::string& address);

// "10.0.0.1:80", "[fe80::1]:80".
std::string EndpointAt(absl::string_view address, uint16_t port);

}  // namespace cadre::sockets

#endif  // CADRE_WORKER_RUNTIME_SOCKETS_TCP_SOCKET_H_
