// Carrying on for an agent that died: its workers, which its supervisor has kept, and its place
// with the server. Blocks on the file system and for kAdoptLimit at most; one thread.
#ifndef CADRE_AGENT_ADOPTION_H_
#define CADRE_AGENT_ADOPTION_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/supervisor/frames.h"
#include "agent/supervisor_client.h"
#include "proto/agent_run.pb.h"

namespace cadre {

struct Adoption {
  std::unique_ptr<SupervisorClient> supervisor;
  // The agent's directory, in which its workers look for it.
  std::string directory;
  v1::AgentRun run;
  AdoptedFrame inventory;
};

// The workers that a killed agent of the run that `wanted` names left; nullopt: there are none.
// Those that cannot be carried on, because they run something else or never were complete, are
// stopped; `notices` then gets a line that says so. `parent`: as for LocalDirectory::Make.
std::optional<Adoption> FindAdoption(const v1::AgentRun& wanted, std::vector<std::string>* notices,
                                     const std::string& parent = "");

// Leaves in an agent's directory what FindAdoption looks for. The frame is for its supervisor:
// workers may outlive the agent by `time`.
absl::StatusOr<KeepFrame> OfferForAdoption(const std::string& directory, const std::string& token,
                                           absl::Duration time, v1::AgentRun run);

}  // namespace cadre

#endif  // CADRE_AGENT_ADOPTION_H_
