// One worker of the generation that was started here. It has one state, which Next() gives for each
// event. Pure; one thread.
#ifndef CADRE_AGENT_CORE_WORKER_H_
#define CADRE_AGENT_CORE_WORKER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "base/time.h"
#include "proto/rendezvous.pb.h"

namespace cadre::agent {

enum class WorkerState {
  kStarting,   // it was given to the supervisor
  kRunning,    // it has a process
  kCanRejoin,  // likewise, which can go on in the next generation
  kWaits,      // it has given the generation up and waits for the next one
  kGaveUp,     // likewise, and the server was told, because nobody had ended the generation
  kLate,       // it was to give the generation up, did not in time, and is killed
  kRemains,    // SIGKILL has not ended it
  kExited,
};
inline constexpr int kWorkerStates = 8;

enum class WorkerEvent {
  kRuns,          // the supervisor has its process
  kCanRejoin,     // it says so
  kCannotRejoin,  // likewise
  kWaits,         // it has given the generation up
  kServerTold,    // of that
  kServerIsBack,  // on a new connection all is said again
  kTooLate,       // the time to give the generation up is over
  kRemains,       // SIGKILL has not ended it
  kExits,
};
inline constexpr int kWorkerEvents = 9;

WorkerState Next(WorkerState state, WorkerEvent event);

struct Worker {
  WorkerState state = WorkerState::kStarting;
  int32_t pid = 0;        // 0: not known yet
  bool rejoined = false;  // the process is one of the generation before
  bool warm = false;      // it was forked from one that had imported the program's packages
  std::string why_plain;  // why it was not
  // While it waits: since when, and what it found wrong.
  MonoTime waits_since;
  std::string waits_because;
  v1::WorkerExited exit;  // of kExited
  // What SIGKILL has not ended, of it or, where it has ended, of what it started.
  std::optional<v1::WorkerRemains> remains;
  std::optional<v1::Progress> progress;  // newest that it reported
  // When it last showed progress; unset for a program that shows none, which cannot hang by this
  // measure. And when it last wrote something, or started.
  std::optional<MonoTime> progressed_at;
  MonoTime wrote_at;
  bool imports = false;  // a Python program's, which says nothing until it has imported its packages
  // How long it usually takes from one sign of progress to the next; zero before the second.
  absl::Duration usual;

  void Take(WorkerEvent event) { state = Next(state, event); }
  void Progressed(MonoTime at);
  bool waits() const { return state == WorkerState::kWaits || state == WorkerState::kGaveUp; }
  bool exited() const { return state == WorkerState::kExited; }
};

// By local rank.
using Workers = std::map<uint32_t, Worker>;

// What the server hears of one that has ended, or that SIGKILL has not ended.
v1::NodeMessage ExitedMessage(const Worker& worker);
v1::NodeMessage RemainsMessage(const Worker& worker);

// The workers that the order lets live, of those that can rejoin.
std::set<uint32_t> WorkersToKeep(const Workers& workers, const v1::Stop& stop);

// SIGKILL has not ended one of them, or had not.
bool HasRemains(const Workers& workers);

// What they reported last, all together.
v1::NodeProgress SumOfProgress(const Workers& workers);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CORE_WORKER_H_
