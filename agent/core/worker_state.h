// One worker of the generation that runs on this node: its state machine, Next(), what its exit
// means, and what the server is told about it. node_generation.h holds the workers. Pure; one
// thread.
#ifndef CADRE_AGENT_CORE_WORKER_STATE_H_
#define CADRE_AGENT_CORE_WORKER_STATE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "base/time.h"
#include "proto/failure.pb.h"
#include "proto/rendezvous.pb.h"

namespace cadre::agent {

enum class WorkerState {
  kStarting,    // it was handed to the supervisor
  kRunning,     // it has a process
  kCanRejoin,   // running, and able to go on in the next generation
  kWaits,       // it has given the generation up and waits for the next one
  kGaveUp,      // waits, and the server was told so because it had not ended the generation
  kLate,        // it did not give the generation up in time and is killed
  kUnkillable,  // SIGKILL has not ended it
  kExited,
};
inline constexpr int kWorkerStates = 8;

enum class WorkerEvent {
  kRuns,          // the supervisor has started its process
  kCanRejoin,     // the worker reports so
  kCannotRejoin,  // the worker reports so
  kWaits,         // it has given the generation up
  kServerTold,    // the server was told that the worker gave up
  kServerIsBack,  // on a new connection everything is reported again
  kTooLate,       // the time to give the generation up is over
  kUnkillable,    // SIGKILL has not ended it
  kExits,
};
inline constexpr int kWorkerEvents = 9;

WorkerState Next(WorkerState state, WorkerEvent event);

struct Worker {
  WorkerState state = WorkerState::kStarting;
  int32_t pid = 0;        // 0: not known yet
  bool rejoined = false;  // the process was kept from the generation before
  bool warm = false;      // it was forked from a template that had imported the program's packages
  std::string why_plain;  // why it was not forked
  // While it waits: since when, and the error that made it give up.
  MonoTime waits_since;
  std::string waits_because;
  v1::WorkerExited exit;  // valid in kExited
  // The processes that SIGKILL has not ended: the worker or, if it has ended, its descendants.
  std::optional<v1::WorkerRemains> unkillable;
  std::optional<v1::Progress> progress;  // the newest that it reported
  // When it last showed progress, unset for a program that shows none (the progress timeout does
  // not apply to it); and when it last wrote output, or started.
  std::optional<MonoTime> progressed_at;
  MonoTime wrote_at;
  // A Python program that is still importing its packages and writes nothing meanwhile.
  bool imports = false;
  // The moving average of the time between two signs of progress; zero before the second.
  absl::Duration usual_interval;

  void Apply(WorkerEvent event) { state = Next(state, event); }
  void Progressed(MonoTime at);
  bool waits() const { return state == WorkerState::kWaits || state == WorkerState::kGaveUp; }
  bool exited() const { return state == WorkerState::kExited; }
};

// By local rank.
using Workers = std::map<uint32_t, Worker>;

// The cause of a worker's exit; FAILURE_CAUSE_UNSPECIFIED for success. `stopped_by_us`: the worker
// had been ordered to stop.
v1::FailureCause ClassifyExit(const v1::WorkerExit& exit, bool stopped_by_us);

// Describes a worker's exit as a failure, for a verdict made without the server.
v1::Failure FailureOf(const v1::WorkerExited& exited, uint32_t first_rank, const std::string& node,
                      uint64_t generation);

// The reports to the server of an exit and of processes that could not be killed.
v1::NodeMessage ExitedMessage(const Worker& worker);
v1::NodeMessage UnkillableMessage(const Worker& worker);

// The workers that can rejoin and that the stop order does not replace.
std::set<uint32_t> WorkersToKeep(const Workers& workers, const v1::Stop& stop);

// Whether a process of a worker outlives SIGKILL, or did so before.
bool HasUnkillableProcesses(const Workers& workers);

// Sums up the newest progress of all workers.
v1::NodeProgress SumOfProgress(const Workers& workers);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CORE_WORKER_STATE_H_
