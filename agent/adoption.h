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
#include "agent/supervisor/client.h"
#include "agent/supervisor/frames.h"
#include "proto/agent_run.pb.h"

namespace cadre::agent {

struct Adoption {
  std::unique_ptr<supervisor::Client> supervisor;
  // The agent's directory, in which its workers look for it.
  std::string directory;
  v1::AgentRun run;
  supervisor::AdoptedFrame inventory;
};

// Workers that cannot be carried on, because they run something else or never were complete.
struct UnfitWorkers {
  // Of the agent that left them.
  std::string directory;
  v1::AgentRun run;
  std::string why;
};

struct FoundWorkers {
  std::optional<Adoption> adoption;
  std::vector<UnfitWorkers> unfit;
};

// The workers that killed agents of the run that `wanted` names left. None is touched: the launcher
// may have been started by mistake, and be refused. `notices` gets a line for what cannot be taken
// over now. `parent`: as for LocalDirectory::Make.
FoundWorkers FindAdoption(const v1::AgentRun& wanted, std::vector<std::string>* notices,
                          const std::string& parent = "");

// Stops them, for an agent that the server has taken in their place. Empty: they had ended before;
// else a line that says so.
std::string StopUnfit(const UnfitWorkers& unfit);

// Leaves in an agent's directory what FindAdoption looks for, with the version that its supervisor
// speaks. The frame is for that: workers may outlive the agent by `time`.
absl::StatusOr<supervisor::KeepFrame> OfferForAdoption(const std::string& directory,
                                                       const std::string& token,
                                                       absl::Duration time, v1::AgentRun run);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_ADOPTION_H_
