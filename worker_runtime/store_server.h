// Serves a generation's store over TCP, for workers that no agent serves.
#ifndef CADRE_WORKER_RUNTIME_STORE_SERVER_H_
#define CADRE_WORKER_RUNTIME_STORE_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace cadre {

class StoreServer {
 public:
  // Listens at this address of the machine (no name), on a port that is free. Calls must carry the
  // token. UNAVAILABLE: it cannot listen there.
  static absl::StatusOr<std::unique_ptr<StoreServer>> Start(const std::string& address,
                                                            int world_size,
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

}  // namespace cadre

#endif  // CADRE_WORKER_RUNTIME_STORE_SERVER_H_
