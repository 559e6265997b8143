// TCP ports of this machine: reserving a free one, and finding out who listens at one.
#ifndef CADRE_AGENT_WORKERS_PORTS_H_
#define CADRE_AGENT_WORKERS_PORTS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace cadre::agent {

// Reserves a free port until it is released: MASTER_PORT of the next generation. One thread.
class PortReservation {
 public:
  // Binds a port chosen by the kernel on `address` (numeric; anything else, or empty, means all
  // addresses), without listening on it.
  static absl::StatusOr<PortReservation> Acquire(const std::string& address);

  PortReservation() = default;
  PortReservation(PortReservation&& other) noexcept;
  PortReservation& operator=(PortReservation&& other) noexcept;
  ~PortReservation() { Release(); }

  // 0 if no port is held.
  uint16_t port() const { return port_; }
  void Release();

 private:
  int fd_ = -1;
  uint16_t port_ = 0;
};

// Finds the process that listens at the port, by /proc. Returns "python3 (pid 812)", or "a process
// of user id 1001" if this user may not inspect that process, or "" if no listener is found.
// `address` is a numeric address; listeners at all addresses match it too. If it is empty or not
// numeric, a listener at any address matches.
std::string WhoListensAt(const std::string& address, uint16_t port);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_PORTS_H_
