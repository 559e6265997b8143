// Serves a store over TCP, for workers that no agent serves: the store's part of
// rpc/worker_protocol.h.
#ifndef CADRE_WORKER_RUNTIME_STORE_STORE_SERVER_H_
#define CADRE_WORKER_RUNTIME_STORE_STORE_SERVER_H_

#include <memory>
#include <string>

#include "cadre/result.h"

namespace cadre::store {

class StoreServer {
 public:
  // Listens at this address of the machine (no name), on a port that is free; a thread serves.
  // Clients must know the token. UNAVAILABLE: it cannot listen there.
  static Result<std::unique_ptr<StoreServer>> Start(const std::string& address, int world_size,
                                                    const std::string& token);
  // Whoever waits is told UNAVAILABLE.
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  // "10.0.0.1:4567"
  const std::string& endpoint() const;

 private:
  struct State;
  explicit StoreServer(std::unique_ptr<State> state);
  const std::unique_ptr<State> state_;
};

}  // namespace cadre::store

#endif  // CADRE_WORKER_RUNTIME_STORE_STORE_SERVER_H_
