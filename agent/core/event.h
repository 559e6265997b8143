// What the agent core is told.
#ifndef CADRE_AGENT_CORE_EVENT_H_
#define CADRE_AGENT_CORE_EVENT_H_

#include <signal.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "base/time.h"
#include "proto/failure.pb.h"
#include "proto/rendezvous.pb.h"

namespace cadre::agent {

struct LinkUp {
  uint64_t stream = 0;  // the link's number
};
struct LinkDown {
  absl::Status status;
};
struct ServerSaid {
  v1::ServerMessage message;
};
// From the supervisor. What happens on the node names a generation by its number: the next one, of
// whichever server, starts when nothing of this one runs.
struct WorkerRuns {
  uint64_t generation;
  uint32_t local_rank;
  int32_t pid;
  bool warm = false;           // forked from a process that had imported the program's packages
  std::string why_plain = {};  // why it was not; empty: it is no program that could be
};
// Of a Python program. Also what is the same as when it was said last.
struct ProgramImported {
  uint64_t generation;
  v1::ProgramImports imports;
};
struct WorkerDied {
  uint64_t generation;
  uint32_t local_rank;
  v1::WorkerExit exit;
  // Where it was; nothing but the rank is needed.
  std::optional<v1::RankEvidence> evidence = std::nullopt;
};
// SIGKILL has not ended what the report names, whose local rank it has. AllGone follows when it is
// gone.
struct WorkerUnkillable {
  uint64_t generation;
  v1::WorkerRemains remains;
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
struct SupervisorLost {
  std::string why;
};
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
// The answer to CollectStacks.
struct StacksFound {
  uint64_t generation;
  v1::NodeStacks stacks;
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
// How busy the node is; the server hears of it with the next heartbeat.
struct UsageMeasured {
  v1::NodeUsage usage;
};
// Moments are told by a clock that stands still while the machine sleeps; it has slept for so long
// since the event before.
struct MachineSlept {
  absl::Duration duration;
};
struct AgentTick {};
using AgentEvent =
    std::variant<LinkUp, LinkDown, ServerSaid, WorkerRuns, ProgramImported, WorkerDied,
                 WorkerUnkillable, AllGone, WorkerMayRejoin, WorkerWaits, SupervisorLost,
                 WorkerProgress, WorkerAlive, WorkerWrote, EvidenceFound, EvidenceDone, StacksFound,
                 SignalReceived, WorkerAsked, UsageMeasured, MachineSlept, AgentTick>;

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CORE_EVENT_H_
