// Serves a store over TCP, for workers that no agent serves: the store's part of
// rpc/worker_protocol.h.
#ifndef CADRE_WORKER_RUNTIME_STORE_STORE_SERVER_H_
#define CADRE_WORKER_RUNTIME_STORE_STORE_SERVER_H_

#include <chrono>
#include <memory>
#include <string>

#include "base/scoped_fd.h"
#include "cadre/result.h"

namespace cadre::store {

class StoreServer {
 public:
  // Serves on a thread of its own whoever connects to `listener` and proves that it knows `key`
  // (gate.h), encrypted where CADRE_ENCRYPT says so. INTERNAL: the system has no descriptors for
  // it.
  static Result<std::unique_ptr<StoreServer>> Start(ScopedFd listener, int world_size,
                                                    const std::string& key);
  // Whoever waits is told UNAVAILABLE.
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  // "10.0.0.1:4567"; "[::]:4567": at all addresses of this machine.
  const std::string& endpoint() const;
  // One of this machine that a client reached it at, and that is not loopback. Empty: none so far.
  std::string address_reached() const;
  // As Gate has them.
  int refused_rank() const;
  bool lacked_descriptors() const;

  // Waits until no more than one client, who is this process's own, is connected. False: not within
  // `patience`.
  bool AwaitAlone(std::chrono::nanoseconds patience);

 private:
  struct State;
  explicit StoreServer(std::unique_ptr<State> state);
  const std::unique_ptr<State> state_;
};

}  // namespace cadre::store

#endif  // CADRE_WORKER_RUNTIME_STORE_STORE_SERVER_H_
