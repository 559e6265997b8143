// The PyTorch store that the agent of rank 0's node serves at MASTER_ADDR:MASTER_PORT: whether a
// generation has one, and for how long. Used by one thread at a time.
#ifndef CADRE_AGENT_GENERATION_STORE_H_
#define CADRE_AGENT_GENERATION_STORE_H_

#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "agent/display.h"
#include "agent/torch_store/agent_store.h"
#include "agent/workers/python/python_program.h"
#include "agent/workers/worker_start.h"
#include "base/threads/file_thread.h"

namespace cadre::agent {

// Whether the workers are to use a store that their agent serves. `torch`: the version they import.
//
// Not with `adopt_timeout`, because the keys would end with the agent while the workers live on.
// Not with a PyTorch without the handshake.
bool WantsAgentStore(const WorkerEnvironmentOptions& environment, absl::Duration adopt_timeout,
                     const std::optional<TorchVersion>& torch);

// Whether another process listens at the user's MASTER_PORT on rank 0's node. Ranks would connect
// to it without noticing, for instance to another job that was given the same port.
bool MasterPortIsTaken(const v1::Assign& assign);

class GenerationStore {
 public:
  // The display must outlive the object.
  GenerationStore(absl::Duration adopt_timeout, Display& display)
      : adopt_timeout_(adopt_timeout), display_(display) {}

  // Called when a generation begins here; the store of the one before ends. Sets in `environment`
  // whether the workers use the agents' store; on rank 0's node it is open on return, at a port
  // that may still be held.
  //
  // The PyTorch version is read from files. This waits a second at most, and not at all if the
  // answer does not matter or if a file has not answered before.
  //
  // Only rank 0 acts on the variable; the others are clients of MASTER_ADDR:MASTER_PORT, whichever
  // process serves there. But with PyTorch before 2.6, ranks for which it is True add a prefix to
  // their keys. So all nodes decide by what all of them know: the version of PyTorch, and whether
  // MASTER_ADDR is an address. The others do not learn what only rank 0's node knows, such as that
  // the port is in use.
  void Begin(WorkerEnvironmentOptions* environment);
  // Another process took the port at the last moment.
  bool PortIsTaken() const { return taken_; }
  // The generation is being stopped, but its workers may still save their state.
  void StopWaits();
  // Called when no worker of the generation is left on this node.
  void End();
  // Displays the store's pending messages.
  void Poll();

 private:
  void LeaveToRankZero(absl::string_view why);

  const absl::Duration adopt_timeout_;
  Display& display_;
  FileThread files_{{}};  // reads files in the interpreter's directories
  std::unique_ptr<AgentStore> store_;
  bool taken_ = false;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_GENERATION_STORE_H_
