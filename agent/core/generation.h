// The newest generation that was started on this node: its workers, and how they are stopped. Where
// the order says so, workers that can rejoin are kept: they give the generation up and wait, and
// the next one starts only those that are missing. Pure; one thread.
//
//          Start             Stop              nothing is left
//   IDLE --------> RUNNING --------> STOPPING ----------------> IDLE
//     ^               ^                  | nothing but kept workers, which wait
//     | the last      | Start            v
//     | one dies      +-------------- HOLDING
//     +----------------------------------+      Stop: back to STOPPING
#ifndef CADRE_AGENT_CORE_GENERATION_H_
#define CADRE_AGENT_CORE_GENERATION_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "agent/core/event.h"
#include "agent/core/outbox.h"
#include "agent/core/worker.h"
#include "base/generation_id.h"
#include "base/time.h"
#include "proto/failure.pb.h"
#include "proto/rendezvous.pb.h"

namespace cadre::agent {

class Generation {
 public:
  enum class Phase { kIdle, kRunning, kStopping, kHolding };

  // `out` outlives the object.
  explicit Generation(Outbox& out) : out_(out) {}

  // --- from the server, or its absence ---
  // Workers that another process of this incarnation started.
  void Adopt(const GenerationId& id, uint32_t first_rank, uint32_t workers);
  // Not Alive(). `tell`: the server hears of the workers that go on.
  void Start(MonoTime now, const GenerationId& id, const v1::Assign& assign, bool tell);
  // Again with fewer to keep, or less grace: those go too. With `wait_for_look` the order goes out
  // with LookEnded(), unless there is no grace.
  void Stop(MonoTime now, absl::Duration grace, std::set<uint32_t> keep, const std::string& reason,
            bool wait_for_look);
  void LookEnded(MonoTime now);
  // They are killed because the server does not answer.
  void Fenced() { fenced_ = true; }
  // A new connection: the server hears everything again; one that lost its state and does not know
  // the generation, why it has to wait for this node.
  void SpeakAgain(bool known);

  // --- from the node; false: it is not about a worker that is here ---
  void OnRuns(const WorkerRuns& event, MonoTime now, bool tell);
  void OnImported(const ProgramImported& event, MonoTime now, bool tell);
  // The first failure is kept. `fenced_because`: what ended it where it was fenced.
  bool OnDied(const WorkerDied& event, MonoTime now, const std::string& node,
              const std::string& fenced_because);
  // The job will go on without this node: kept workers, which would wait in vain, are stopped.
  // False too where that was known.
  bool OnUnkillable(const WorkerUnkillable& event, MonoTime now);
  bool OnAllGone(const AllGone& event);
  void OnMayRejoin(const WorkerMayRejoin& event);
  bool OnWaits(const WorkerWaits& event, MonoTime now);
  bool OnProgress(const WorkerProgress& event);
  void OnAlive(const WorkerAlive& event);
  void OnWrote(const WorkerWrote& event);

  // --- time ---
  // `tell`: the server hears of workers that wait while nobody ends the generation. Who was to give
  // it up and has not, within `grace`, is killed.
  void OnDeadlines(MonoTime now, bool tell, absl::Duration grace);
  MonoTime Deadline(bool tell) const;
  // Nothing runs any more, or nothing but kept workers that wait: true, and the phase follows.
  bool EndIfClear();
  // Nothing is left, whatever was there.
  void Lost() { phase_ = Phase::kIdle; }

  // "rank 3 (local rank 1)".
  std::string NameOf(uint32_t local_rank) const;

  Phase phase() const { return phase_; }
  bool running() const { return phase_ == Phase::kRunning; }
  // A worker still works at it, and none has failed.
  bool GoesOn() const;
  bool Alive() const { return running() || phase_ == Phase::kStopping; }
  bool HasProcesses() const { return Alive() || phase_ == Phase::kHolding; }
  // Whether a Stop without kept workers would change anything.
  bool StopsAll() const { return phase_ == Phase::kStopping && kept_.empty(); }
  const GenerationId& id() const { return id_; }
  // What messages that speak of no particular generation name.
  GenerationId Named() const { return Alive() ? id_ : GenerationId{}; }
  const Workers& workers() const { return workers_; }
  bool fenced() const { return fenced_; }
  // The first among its workers; the server may not know of it.
  const std::optional<v1::Failure>& failure() const { return failure_; }

 private:
  Worker* Find(uint64_t generation, uint32_t local_rank);
  Worker* FindRunning(uint64_t generation, uint32_t local_rank);
  void OnKeptDied(uint32_t local_rank, MonoTime now);
  void SendStop(MonoTime now, absl::Duration grace);
  void ReportGivenUp(MonoTime now);
  void StopLate(MonoTime now, absl::Duration grace);
  MonoTime KeepsUntil() const;

  Outbox& out_;
  Phase phase_ = Phase::kIdle;
  GenerationId id_;
  uint32_t first_rank_ = 0;
  Workers workers_;
  bool fenced_ = false;
  std::optional<v1::Failure> failure_;
  std::optional<v1::ProgramImports> imports_;  // as they were said last

  // The stop. Workers that are kept, and whether everything else is gone; what all have to give the
  // generation up or to end, and until when, from the order on: Never before it, and once those who
  // were late are stopped.
  std::set<uint32_t> kept_;
  std::string reason_;
  bool others_gone_ = false;
  absl::Duration grace_;
  MonoTime grace_over_ = MonoTime::Never();
  // The order waits for a look at the workers.
  bool waits_for_look_ = false;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CORE_GENERATION_H_
