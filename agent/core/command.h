// What the agent core wants done.
#ifndef CADRE_AGENT_CORE_COMMAND_H_
#define CADRE_AGENT_CORE_COMMAND_H_

#include <cstdint>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "base/generation_id.h"
#include "base/time.h"
#include "proto/job.pb.h"
#include "proto/rendezvous.pb.h"
#include "proto/spec.pb.h"

namespace cadre::agent {

struct SendUp {
  v1::NodeMessage message;
};
// The server has taken this node in, for the first time in this process's life. Workers are started
// by `spec`; those that an agent left which died, and that cannot be carried on, are stopped.
struct BeginJob {
  v1::JobSpec spec;
};
// Start the workers of this assignment, but for the kept local ranks: those processes wait, and are
// told their place.
struct StartWorkers {
  GenerationId generation;
  v1::Assign assign;
  std::set<uint32_t> kept = {};
};
// SIGTERM, SIGCONT, after `grace` SIGKILL; ends with AllGone. Again with a shorter grace: hurry.
// Local ranks in `kept` are told `reason` instead; again with fewer of them: stop those too.
struct StopWorkers {
  uint64_t generation;
  absl::Duration grace;
  std::set<uint32_t> kept = {};
  std::string reason = {};
};
// With strict fencing: the workers are killed at this moment, also if this process stands still by
// then or the machine sleeps meanwhile, unless a later one is named before.
struct HoldWorkersUntil {
  uint64_t generation;
  MonoTime at;
};
// Look at all workers of the generation, those in `overdue` first; ends with EvidenceFound and
// then, when native stacks are written too, EvidenceDone.
struct CollectEvidence {
  uint64_t generation;
  std::vector<uint32_t> overdue;
  // Nothing is to be stopped: without native stacks, for which processes are, files and last lines.
  bool briefly = false;
};
// Somebody asks where the workers of the generation are; ends with StacksFound.
struct CollectStacks {
  uint64_t generation;
  v1::AskStacks ask;
};
// Tell the workers of the generation, which run, that more nodes wait: they are to save and begin
// the next generation.
struct AskForCheckpoint {
  uint64_t generation;
  // To be sent to them; 0: none.
  int signal;
};
// Give this to the worker that asked (matched by client and request_id).
struct StoreAnswer {
  v1::StoreReply reply;
};
// New state to show (nodes in, workers up, what is waited for).
struct ShowStatus {
  v1::JobStatus status;
};
// A line for the person at the terminal.
struct Say {
  std::string line;
};
// The last command: leave with this status. The workers are gone.
struct Exit {
  int status;
  // One line for stderr; empty when there is nothing to add to the verdict.
  std::string message;
  v1::Verdict verdict;    // empty when the server gave none
  v1::Timeline timeline;  // likewise
  // Where the server gave no verdict: what this node knows of the job. `generations` is the number
  // of the newest that was assigned here, and the first failure among its workers in that one is
  // the root cause, or, where the job was cancelled, among the earlier ones.
  v1::Verdict own = {};
  // The server refused an agent that was to carry on: its workers are left as they were found.
  bool leaves_workers = false;
};
using AgentCommand =
    std::variant<SendUp, BeginJob, StartWorkers, StopWorkers, HoldWorkersUntil, CollectEvidence,
                 CollectStacks, AskForCheckpoint, StoreAnswer, ShowStatus, Say, Exit>;

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CORE_COMMAND_H_
