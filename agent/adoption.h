// Adoption: takes over the workers of an agent that died, which its supervisor has kept running,
// and its place at the server. Blocks on the file system, and for kAdoptLimit at most; one thread.
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
  // The directory of the agent that died, in which its workers look for their agent.
  std::string directory;
  v1::AgentRun run;
  supervisor::AdoptedFrame inventory;
};

// Workers that cannot be adopted, because they run another command or were never all started.
struct UnfitWorkers {
  // The directory of the agent that left them.
  std::string directory;
  v1::AgentRun run;
  std::string why;
};

struct FoundWorkers {
  std::optional<Adoption> adoption;
  std::vector<UnfitWorkers> unfit;
};

// Finds the workers that killed agents of the run `wanted` left. None is stopped: the launcher may
// have been started by mistake, and be refused. `notices` gets a line for each run that cannot be
// adopted now. `parent`: as for LocalDirectory::Make.
FoundWorkers FindAdoption(const v1::AgentRun& wanted, std::vector<std::string>* notices,
                          const std::string& parent = "");

// Stops them once the server has accepted this agent in their place. Returns a line that reports
// it, or an empty string if they had ended before.
std::string StopUnfit(const UnfitWorkers& unfit);

// Writes to an agent's directory what FindAdoption looks for, including the frame version of its
// supervisor. The returned frame tells the supervisor that workers may outlive the agent by `time`.
absl::StatusOr<supervisor::KeepFrame> OfferForAdoption(const std::string& directory,
                                                       const std::string& token,
                                                       absl::Duration time, v1::AgentRun run);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_ADOPTION_H_
