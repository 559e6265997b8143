// What an agent is started with.
#ifndef CADRE_AGENT_CORE_AGENT_CONFIG_H_
#define CADRE_AGENT_CORE_AGENT_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "base/generation_id.h"
#include "base/time.h"
#include "proto/rendezvous.pb.h"

namespace cadre::agent {

// Workers that another process of this incarnation started before it died. What became of each of
// them is told by WorkerRuns and WorkerDied.
struct AdoptedWorkers {
  GenerationId generation;
  uint32_t workers = 0;
  // Until when the supervisor was to hold them, with strict fencing.
  MonoTime held_until;
  // They are being stopped, and what is left of their grace counts.
  bool stopping = false;
  // Of local rank 0.
  uint32_t first_rank = 0;
};

struct AgentConfig {
  std::string job;
  uint64_t incarnation = 0;
  std::optional<AdoptedWorkers> adopted;
  // host:port of the server, for people. Empty: lines do not name it.
  std::string server;
  // The job's server is in this process and ends with it.
  bool serves = false;
  // Sent on every (re)connection.
  v1::Join join;
  // Give up when the server was never reached for this long (exit 69).
  absl::Duration connect_timeout = absl::Minutes(10);
  // Keep workers without a server for this long, then stop them (exit 69).
  absl::Duration orphan_timeout = absl::Seconds(60);
  // Whoever takes this node's place runs only when none of its workers does any more, for programs
  // that use what cannot tell an old generation from a new one.
  bool strict_fencing = false;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CORE_AGENT_CONFIG_H_
