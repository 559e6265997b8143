// What an agent does on each order, exit or signal. Pure, like rendezvous/core: the daemon feeds it
// events with the time and carries out the commands in order.
//
//   CONNECTING --Welcome--> WAITING --Assign--> RUNNING --Stop--> STOPPING --all gone--> WAITING
//   any --Finished / Rejected / given up--> (stop what runs) --> DONE
//
// Where the order to stop says so, workers that can rejoin are kept: they give the generation up
// and wait, and the next assignment starts only those that are missing.
//
// The server away (LinkDown) changes nothing for running workers until `orphan_timeout`. With
// `strict_fencing` they are killed before the lease ends, also where nothing but answers is
// missing.
#ifndef CADRE_AGENT_CORE_AGENT_CORE_H_
#define CADRE_AGENT_CORE_AGENT_CORE_H_

#include <signal.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/generation_id.h"
#include "base/time.h"
#include "proto/job.pb.h"
#include "proto/rendezvous.pb.h"

namespace cadre {

// --- events ---
struct LinkUp {};
struct LinkDown {
  absl::Status status;
};
struct ServerSaid {
  v1::ServerMessage message;
};
// From the supervisor. `exit` is set by WorkerDied only. What happens on the node names a
// generation by its number: the next one, of whichever server, starts when nothing of this one
// runs.
struct WorkerRuns {
  uint64_t generation;
  uint32_t local_rank;
  int32_t pid;
};
struct WorkerDied {
  uint64_t generation;
  uint32_t local_rank;
  v1::WorkerExit exit;
  // Where it was; nothing but the rank is needed.
  std::optional<v1::RankEvidence> evidence = std::nullopt;
};
// Every process of the generation is gone, but for the kept ones of the last StopWorkers;
// `held_port` is the next one for MASTER_PORT.
struct AllGone {
  uint64_t generation;
  uint32_t held_port;
  std::set<uint32_t> kept = {};
};
// The worker can rejoin, or no longer.
struct WorkerMayRejoin {
  uint64_t generation;
  uint32_t local_rank;
  bool may;
};
// It has given the generation up and waits for its place in the next one.
struct WorkerWaits {
  uint64_t generation;
  uint32_t local_rank;
  std::string reason;
};
struct SupervisorLost {};
// What it reported last, or its page says, at that moment. Another step is progress.
struct WorkerProgress {
  uint64_t generation;
  v1::Progress progress;
  MonoTime at;
};
// Progress without a step: its page moved on, or it touched its progress file or descriptor.
struct WorkerAlive {
  uint64_t generation;
  uint32_t local_rank;
  MonoTime at;
};
// It wrote to its standard output or error.
struct WorkerWrote {
  uint64_t generation;
  uint32_t local_rank;
  MonoTime at;
};
// What CollectEvidence asked for: each worker by local rank.
struct EvidenceFound {
  uint64_t generation;
  std::vector<v1::RankEvidence> ranks;
};
// Nobody looks at the workers any more: they may be stopped.
struct EvidenceDone {
  uint64_t generation;
};
// SIGINT, SIGTERM, ... to this process.
//
// kWarningSignal is a scheduler's warning that it will take all nodes of the job away (sbatch
// --signal=USR1@TIME): the job is preempted, not cancelled.
inline constexpr int kWarningSignal = SIGUSR1;
struct SignalReceived {
  int signal;
};
// A worker asked for a store operation; the answer comes back as StoreAnswer.
struct WorkerAsked {
  v1::StoreRequest request;
};
struct AgentTick {};
using AgentEvent =
    std::variant<LinkUp, LinkDown, ServerSaid, WorkerRuns, WorkerDied, AllGone, WorkerMayRejoin,
                 WorkerWaits, SupervisorLost, WorkerProgress, WorkerAlive, WorkerWrote,
                 EvidenceFound, EvidenceDone, SignalReceived, WorkerAsked, AgentTick>;

// --- commands ---
struct SendUp {
  v1::NodeMessage message;
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
// With strict fencing: the workers are killed at this moment of the machine's monotonic clock, also
// if this process stands still by then, unless a later one is named before.
struct HoldWorkersUntil {
  uint64_t generation;
  MonoTime at;
};
// Look at all workers of the generation, those in `overdue` first; ends with EvidenceFound and
// then, when native stacks are written too, EvidenceDone.
struct CollectEvidence {
  uint64_t generation;
  std::vector<uint32_t> overdue;
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
    std::variant<SendUp, StartWorkers, StopWorkers, HoldWorkersUntil, CollectEvidence,
                 AskForCheckpoint, StoreAnswer, ShowStatus, Say, Exit>;

// Workers that another process of this incarnation started before it died. What became of each of
// them is told by WorkerRuns and WorkerDied.
struct AdoptedWorkers {
  GenerationId generation;
  uint32_t workers = 0;
  // Until when the supervisor was to hold them, with strict fencing.
  MonoTime held_until;
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

}  // namespace cadre

#endif  // CADRE_AGENT_CORE_AGENT_CORE_H_
