// What an agent does on each order, exit or signal. Pure, like rendezvous/core: the daemon feeds it
// events with the time and carries out the commands in order.
//
//   IDLE --Assign--> RUNNING --Stop--> STOPPING --all gone--> IDLE, or HOLDING --Assign--> RUNNING
//   any --Finished / Rejected / given up--> (stop what runs), then Exit
//
// Where the order to stop says so, workers that can rejoin are kept (HOLDING): they give the
// generation up and wait, and the next assignment starts only those that are missing. These are the
// phases of the generation (generation.h); whether the server is there is the session's
// (session.h).
//
// The server away (LinkDown) changes nothing for running workers until `orphan_timeout`. With
// `strict_fencing` they are killed before the lease ends, also where nothing but answers is
// missing.
#ifndef CADRE_AGENT_CORE_AGENT_CORE_H_
#define CADRE_AGENT_CORE_AGENT_CORE_H_

#include <memory>
#include <vector>

#include "agent/core/agent_config.h"
#include "agent/core/command.h"
#include "agent/core/event.h"
#include "base/time.h"

namespace cadre::agent {

class AgentCore {
 public:
  explicit AgentCore(AgentConfig config);
  ~AgentCore();

  std::vector<AgentCommand> Step(MonoTime now, const AgentEvent& event);
  MonoTime NextDeadline() const;

  struct Impl;  // impl.h

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CORE_AGENT_CORE_H_
