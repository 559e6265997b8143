// A socket that listens for a store's clients. Any thread.
#ifndef CADRE_AGENT_TORCH_STORE_LISTENER_H_
#define CADRE_AGENT_TORCH_STORE_LISTENER_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "base/scoped_fd.h"

namespace cadre::agent {

// Non-blocking, at this numeric address of the machine alone, also where connections of an earlier
// listener are not quite over and where a PortHold keeps the port. The connections send at once,
// and notice within two minutes that the other machine is gone. INVALID_ARGUMENT: the address is
// not numeric. ALREADY_EXISTS: somebody else listens there. UNAVAILABLE: it cannot be, and why.
absl::StatusOr<ScopedFd> ListenAt(const std::string& address, uint16_t port);

// The port at which it listens.
uint16_t PortOf(const ScopedFd& listener);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_TORCH_STORE_LISTENER_H_
