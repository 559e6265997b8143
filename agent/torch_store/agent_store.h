// The store that an agent serves to its generation's PyTorch programs at MASTER_ADDR:MASTER_PORT,
// on its own thread, so that agent and store do not block each other. Used by one thread.
#ifndef CADRE_AGENT_TORCH_STORE_AGENT_STORE_H_
#define CADRE_AGENT_TORCH_STORE_AGENT_STORE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "agent/torch_store/torch_store_server.h"
#include "base/scoped_fd.h"

namespace cadre::agent {

class AgentStore {
 public:
  struct Options {
    // The address to listen at: numeric, of this machine.
    std::string address;
    uint16_t port = 0;
    // The addresses of the generation's nodes.
    std::vector<std::string> nodes;
  };

  // Clients may connect when this returns. FAILED_PRECONDITION: the addresses do not determine from
  // where clients will connect. UNAVAILABLE: it cannot listen there.
  static absl::StatusOr<std::unique_ptr<AgentStore>> Open(const Options& options);
  // Closes all connections and drops all keys.
  ~AgentStore();
  AgentStore(const AgentStore&) = delete;
  AgentStore& operator=(const AgentStore&) = delete;

  // See TorchStoreServer.
  void StopWaits();

  // Messages for the user since the last call.
  std::vector<std::string> TakeLines();

 private:
  AgentStore() = default;
  void Run();

  std::atomic<bool> ends_{false};
  std::atomic<bool> stops_waits_{false};
  absl::Mutex mutex_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<TorchStoreServer> server_;  // used by the thread, except for Wake
  std::thread thread_;
};

// Listens at this numeric address of the machine alone, non-blocking, even if connections of an
// earlier listener are not quite over or a PortReservation holds the port. Its connections send
// without delay (TCP_NODELAY), and notice within two minutes that the other machine is gone.
// INVALID_ARGUMENT: the address is not numeric. ALREADY_EXISTS: another process listens there.
// UNAVAILABLE: it cannot listen for another reason. Any thread.
absl::StatusOr<ScopedFd> ListenAt(const std::string& address, uint16_t port);

// The port at which it listens.
uint16_t PortOf(const ScopedFd& listener);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_TORCH_STORE_AGENT_STORE_H_
