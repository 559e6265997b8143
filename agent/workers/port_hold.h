// A TCP port that is free and stays free until it is released: MASTER_PORT of the next generation.
// Movable; one thread.
#ifndef CADRE_AGENT_WORKERS_PORT_HOLD_H_
#define CADRE_AGENT_WORKERS_PORT_HOLD_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace cadre::agent {

class PortHold {
 public:
  // Binds a port that the kernel chooses on `address` (a numeric address; anything else, or empty:
  // all addresses) and does not listen on it.
  static absl::StatusOr<PortHold> Acquire(const std::string& address);

  PortHold() = default;
  PortHold(PortHold&& other) noexcept;
  PortHold& operator=(PortHold&& other) noexcept;
  ~PortHold() { Release(); }

  // 0 when nothing is held.
  uint16_t port() const { return port_; }
  void Release();

 private:
  int fd_ = -1;
  uint16_t port_ = 0;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_PORT_HOLD_H_
