// The store that the agent of rank 0's node serves to PyTorch at MASTER_ADDR:MASTER_PORT: whether a
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
#include "agent/workers/python/program_versions.h"
#include "agent/workers/worker_environment.h"
#include "base/threads/file_thread.h"

namespace cadre::agent {

// Whether workers are to be clients of a store that their agent serves. `torch`: what they import.
//
// None with `adopt_timeout`: the keys would end with the agent, and the workers would not. None for
// a PyTorch that has no hand-shake.
bool WantsAgentStore(const WorkerEnvironmentOptions& environment, absl::Duration adopt_timeout,
                     const std::optional<TorchVersion>& torch);

// Somebody else listens at the MASTER_PORT that was asked for, on rank 0's node. Ranks would meet
// there whoever it is, as another job that was given the same port.
bool MasterPortIsTaken(const v1::Assign& assign);

class GenerationStore {
 public:
  // It uses the display for as long as it is there.
  GenerationStore(absl::Duration adopt_timeout, Display& display)
      : adopt_timeout_(adopt_timeout), display_(display) {}

  // A generation begins here, and the store of the one before ends. Says in the environment whether
  // the workers use the agents' store; on rank 0's node it is open then, at a port that may still
  // be held.
  //
  // Which PyTorch they import is read from files, for which this waits a second, and not at all
  // where the answer changes nothing or a file has not answered before.
  //
  // Only rank 0 goes by the variable, and the others are clients of MASTER_ADDR:MASTER_PORT,
  // whoever serves there; but with PyTorch before 2.6 those for whom it is True put a prefix before
  // their keys. So all nodes look at what all of them know: the version of PyTorch, and whether
  // MASTER_ADDR is an address. What only rank 0's node knows, as that the port is in use, the
  // others do not learn.
  void Begin(WorkerEnvironmentOptions* environment);
  // Somebody else took the port at the last moment.
  bool PortIsTaken() const { return taken_; }
  // The generation is being stopped; its workers may still save their state.
  void StopWaits();
  // No worker of it is left on this node.
  void End();
  // Shows what there is to say.
  void Poll();

 private:
  void LeaveToRankZero(absl::string_view why);

  const absl::Duration adopt_timeout_;
  Display& display_;
  FileThread files_{{}};  // for what is read in the interpreter's folders
  std::unique_ptr<AgentStore> store_;
  bool taken_ = false;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_GENERATION_STORE_H_
