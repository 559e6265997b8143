// The agent's state machine: decides what to do on each message of the server, exit of a worker and
// signal. Pure, like rendezvous/core: the daemon feeds it events with the time and executes the
// commands in order. This header has its configuration, its events, its commands and the class.
//
//   IDLE --Assign--> RUNNING --Stop--> STOPPING --all gone--> IDLE, or HOLDING --Assign--> RUNNING
//   any --Finished / Rejected / given up--> (stop what runs), then Exit
//
// If the stop order allows it, workers that can rejoin are kept (HOLDING): they give the generation
// up and wait, and the next assignment starts only the missing ones. These are the phases of the
// NodeGeneration (node_generation.h); the ServerSession (server_session.h) tracks the connection to
// the server.
//
// Running workers are unaffected by a lost connection (LinkDown) until `orphan_timeout`. With
// `strict_fencing` they are killed before the lease ends, also if the connection stands but the
// server does not answer.
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
#include "proto/failure.pb.h"
#include "proto/job.pb.h"
#include "proto/rendezvous.pb.h"
#include "proto/spec.pb.h"

namespace cadre::agent {

// --- configuration ---

// Workers that an earlier process of this incarnation started before it died. WorkerRuns and
// WorkerDied events report the state of each of them.
struct AdoptedWorkers {
  GenerationId generation;
  uint32_t workers = 0;
  // The time until which the supervisor was told to let them run, with strict fencing.
  MonoTime held_until;
  // True if they are already being stopped; the grace that began then still counts.
  bool stopping = false;
  // The global rank of local rank 0.
  uint32_t first_rank = 0;
};

struct AgentConfig {
  std::string job;
  uint64_t incarnation = 0;
  std::optional<AdoptedWorkers> adopted;
  // host:port of the server, for messages to the user. If empty, messages do not name the server.
  std::string server;
  // True if the job's server runs in this process and ends with it.
  bool serves = false;
  // The Join message, sent on every (re)connection.
  v1::Join join;
  // The agent gives up if it never reached the server for this long (exit 69).
  absl::Duration connect_timeout = absl::Minutes(10);
  // The agent keeps workers without a server for this long, then stops them (exit 69).
  absl::Duration orphan_timeout = absl::Seconds(60);
  // The node that replaces this one starts its workers only when none of this node's workers runs
  // any more. For programs that use resources which cannot tell an old generation from a new one.
  bool strict_fencing = false;
};

// --- events ---

// The link to the server reports these.
struct LinkUp {
  uint64_t stream = 0;  // the link's number
};
struct LinkDown {
  absl::Status status;
};
struct ServerMessageReceived {
  v1::ServerMessage message;
};
// The supervisor reports these. They name a generation by its number alone, since the next
// generation, of whichever server, starts only when no process of this one runs.
struct WorkerRuns {
  uint64_t generation;
  uint32_t local_rank;
  int32_t pid;
  bool warm = false;           // forked from a process that had imported the program's packages
  std::string why_plain = {};  // why it was not; empty: the program cannot be started warm
};
// The imports of a Python program. The event also comes if they are unchanged since the last one.
struct ProgramImported {
  uint64_t generation;
  v1::ProgramImports imports;
};
struct WorkerDied {
  uint64_t generation;
  uint32_t local_rank;
  v1::WorkerExit exit;
  // The state of the worker when it died; of its fields only the rank is required.
  std::optional<v1::RankEvidence> evidence = std::nullopt;
};
// SIGKILL has not ended the processes of the worker that `remains` names. AllGone follows once they
// are gone.
struct WorkerUnkillable {
  uint64_t generation;
  v1::WorkerRemains remains;
};
// Every process of the generation is gone, except the kept ones of the last StopWorkers;
// `held_port` is the next one for MASTER_PORT.
struct AllGone {
  uint64_t generation;
  uint32_t held_port;
  std::set<uint32_t> kept = {};
};
// The worker can rejoin, or no longer can.
struct WorkerMayRejoin {
  uint64_t generation;
  uint32_t local_rank;
  bool may;
};
// The worker has given the generation up and waits for its rank in the next one.
struct WorkerWaits {
  uint64_t generation;
  uint32_t local_rank;
  std::string reason;
};
struct SupervisorLost {
  std::string why;
};
// The latest progress that the worker reported or wrote to its progress page, as of `at`. Only a
// changed step counts as progress.
struct WorkerProgress {
  uint64_t generation;
  v1::Progress progress;
  MonoTime at;
};
// Progress without a step: the worker's page changed, or it touched its progress file or
// descriptor.
struct WorkerAlive {
  uint64_t generation;
  uint32_t local_rank;
  MonoTime at;
};
// The worker wrote to its standard output or error.
struct WorkerWrote {
  uint64_t generation;
  uint32_t local_rank;
  MonoTime at;
};
// The result of CollectEvidence: one entry per worker, by local rank.
struct EvidenceFound {
  uint64_t generation;
  std::vector<v1::RankEvidence> ranks;
};
// The probe of the workers is over: they may be stopped.
struct EvidenceDone {
  uint64_t generation;
};
// The answer to CollectStacks.
struct StacksFound {
  uint64_t generation;
  v1::NodeStacks stacks;
};
// SIGINT, SIGTERM, ... sent to this process.
//
// kWarningSignal is a scheduler's warning that it will take all nodes of the job away (sbatch
// --signal=USR1@TIME): the job ends as preempted, not as cancelled.
inline constexpr int kWarningSignal = SIGUSR1;
struct SignalReceived {
  int signal;
};
// A worker requested a store operation; the answer is a StoreAnswer.
struct StoreRequested {
  v1::StoreRequest request;
};
// The node's measured load, sent to the server with the next heartbeat.
struct UsageMeasured {
  v1::NodeUsage usage;
};
// The machine slept for `duration` since the event before. MonoTime does not advance during sleep.
struct MachineSlept {
  absl::Duration duration;
};
struct AgentTick {};
using AgentEvent =
    std::variant<LinkUp, LinkDown, ServerMessageReceived, WorkerRuns, ProgramImported, WorkerDied,
                 WorkerUnkillable, AllGone, WorkerMayRejoin, WorkerWaits, SupervisorLost,
                 WorkerProgress, WorkerAlive, WorkerWrote, EvidenceFound, EvidenceDone, StacksFound,
                 SignalReceived, StoreRequested, UsageMeasured, MachineSlept, AgentTick>;

// --- commands ---

// Hands the message to the link.
struct SendToServer {
  v1::NodeMessage message;
};
// The server has accepted this node for the first time in this process's life. Workers are started
// by `spec`. Workers left by an agent that died are stopped if they cannot be adopted.
struct BeginJob {
  v1::JobSpec spec;
};
// Starts the workers of this assignment, except the kept local ranks: those processes are waiting
// and get their new rank instead.
struct StartWorkers {
  GenerationId generation;
  v1::Assign assign;
  std::set<uint32_t> kept = {};
};
// Sends SIGTERM and SIGCONT, and after `grace` SIGKILL; AllGone follows. A repeat with a shorter
// grace shortens the wait. Local ranks in `kept` are sent `reason` instead of a signal; a repeat
// with a smaller `kept` stops the removed ones too.
struct StopWorkers {
  uint64_t generation;
  absl::Duration grace;
  std::set<uint32_t> kept = {};
  std::string reason = {};
};
// The supervisor kills the workers at this time unless it is given a later time before; sent with
// strict fencing. It does so also if this process is suspended then or the machine sleeps
// meanwhile.
struct HoldWorkersUntil {
  uint64_t generation;
  MonoTime at;
};
// Probes all workers of the generation, those in `overdue` first. EvidenceFound follows and then,
// if native stacks are written too, EvidenceDone.
struct CollectEvidence {
  uint64_t generation;
  std::vector<uint32_t> overdue;
  // A brief probe, after which nothing is stopped: it collects files and last lines but no native
  // stacks, since collecting these stops the processes.
  bool briefly = false;
};
// A user asked for the stacks of the generation's workers; StacksFound follows.
struct CollectStacks {
  uint64_t generation;
  v1::AskStacks ask;
};
// Tells the running workers of the generation that more nodes wait, so that they save a
// checkpoint and begin the next generation.
struct AskForCheckpoint {
  uint64_t generation;
  // The signal to send to them; 0: none.
  int signal;
};
// Sends a signal to these workers of the generation, which run: to the process alone, but to the
// process group of a worker that is a shell, unless that is the script of a batch job.
struct SignalWorkers {
  uint64_t generation;
  int signal;
  std::set<uint32_t> local_ranks;
};
// Adds a line to the output of a batch job's script that says why it is ended; the line follows
// what the script has written so far. `reason`: of a cancellation, in words; may be empty.
struct NoteEndOfScript {
  uint64_t generation;
  v1::FailureCause cause;  // CANCELLED, TOTAL_TIMEOUT, PREEMPTED or REQUEUED
  std::string reason = {};
};
// Passes this reply to the worker that asked (matched by client and request_id).
struct StoreAnswer {
  v1::StoreReply reply;
};
// A changed job status to display (nodes joined, workers up, what the job waits for).
struct ShowStatus {
  v1::JobStatus status;
};
// A line for the user at the terminal.
struct Say {
  std::string line;
};
// The last command: the process exits with this status. All workers are gone.
struct Exit {
  int status;
  // One line for stderr; empty if there is nothing to add to the verdict.
  std::string message;
  v1::Verdict verdict;    // empty if the server sent none
  v1::Timeline timeline;  // likewise
  // This node's own verdict, used if the server sent none. `generations` is the number of
  // the newest generation assigned here. The first failure among this node's workers in it is the
  // root cause or, if the job was cancelled, one of the earlier failures.
  v1::Verdict own = {};
  // The server refused an agent that was to adopt workers: these workers are left running.
  bool leaves_workers = false;
};
using AgentCommand =
    std::variant<SendToServer, BeginJob, StartWorkers, StopWorkers, HoldWorkersUntil,
                 CollectEvidence, CollectStacks, AskForCheckpoint, SignalWorkers, NoteEndOfScript,
                 StoreAnswer, ShowStatus, Say, Exit>;

// --- exit statuses of the launcher ---

// If the server refuses its Join with this code.
int ExitStatusOfRejection(absl::StatusCode code);
// If a signal made it cancel the job and the server gives no verdict.
int StatusOfCancel(int signal);

// --- the state machine ---

class AgentCore {
 public:
  explicit AgentCore(AgentConfig config);
  ~AgentCore();

  std::vector<AgentCommand> Step(MonoTime now, const AgentEvent& event);
  MonoTime NextDeadline() const;

 private:
  struct Impl;  // in agent_core.cc

  std::unique_ptr<Impl> impl_;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CORE_AGENT_CORE_H_
