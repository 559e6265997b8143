// The store that an agent serves to its generation's PyTorch programs at MASTER_ADDR:MASTER_PORT,
// on a thread of its own: neither waits for the other. One thread uses the object.
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

namespace cadre::agent {

class AgentStore {
 public:
  struct Options {
    // Where to listen: numeric, an address of this machine.
    std::string address;
    uint16_t port = 0;
    // Of the generation's nodes, as they are reached.
    std::vector<std::string> nodes;
  };

  // Clients may connect when this returns. FAILED_PRECONDITION: the addresses do not tell from
  // where they will. UNAVAILABLE: nobody can listen there.
  static absl::StatusOr<std::unique_ptr<AgentStore>> Open(const Options& options);
  // Closes all connections; nothing is kept.
  ~AgentStore();
  AgentStore(const AgentStore&) = delete;
  AgentStore& operator=(const AgentStore&) = delete;

  // As TorchStoreServer has it.
  void StopWaits();

  // Lines for people since the last call.
  std::vector<std::string> TakeLines();

 private:
  AgentStore() = default;
  void Run();

  std::atomic<bool> ends_{false};
  std::atomic<bool> stops_waits_{false};
  absl::Mutex mutex_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<TorchStoreServer> server_;  // the thread's, but for Wake
  std::thread thread_;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_TORCH_STORE_AGENT_STORE_H_
