// A TCP relay on loopback between a launcher and its server, whose connections can be dropped.
#ifndef CADRE_TESTS_SOAK_RELAY_H_
#define CADRE_TESTS_SOAK_RELAY_H_

#include <atomic>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"

namespace cadre {

class Relay {
 public:
  // Listens on a port of its own. Whoever connects while nobody listens on `target_port` is hung up
  // on.
  static absl::StatusOr<std::unique_ptr<Relay>> Start(int target_port);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  int port() const { return port_; }
  // Any thread. Resets all that is open, soon; new ones are taken.
  void DropConnections();

 private:
  // What goes one way and has been read but not been written yet.
  struct Way {
    int from = -1, to = -1;
    std::string pending;
  };
  struct Connection {
    Way up, down;
  };

  Relay() = default;
  void Run();
  void Accept();
  void CloseAll();
  // False: the connection is over.
  static bool Move(Way& way, short from_events, short to_events);

  int target_port_ = 0;
  int port_ = 0;
  int listener_ = -1;
  int wake_ = -1;
  std::atomic<bool> stop_{false};
  std::atomic<bool> drop_{false};
  std::list<Connection> connections_;  // the thread's
  std::thread thread_;
};

}  // namespace cadre

#endif  // CADRE_TESTS_SOAK_RELAY_H_
