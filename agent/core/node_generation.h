// The newest generation started on this node: its workers (worker_state.h), and how they are
// stopped. If the stop order allows it, workers that can rejoin are kept: they give the generation
// up and wait, and the next generation starts only the missing ones. Pure; one thread.
//
//          Start             Stop              nothing is left
//   IDLE --------> RUNNING --------> STOPPING ----------------> IDLE
//     ^               ^                  | nothing but kept workers, which wait
//     | the last      | Start            v
//     | one dies      +-------------- HOLDING
//     +----------------------------------+      Stop: back to STOPPING
#ifndef CADRE_AGENT_CORE_NODE_GENERATION_H_
#define CADRE_AGENT_CORE_NODE_GENERATION_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "agent/core/agent_core.h"
#include "agent/core/command_buffer.h"
#include "agent/core/worker_state.h"
#include "base/generation_id.h"
#include "base/time.h"
#include "proto/failure.pb.h"
#include "proto/rendezvous.pb.h"

namespace cadre::agent {

class NodeGeneration {
 public:
  enum class Phase { kIdle, kRunning, kStopping, kHolding };

  // `out` must outlive the object.
  explicit NodeGeneration(CommandBuffer& out) : out_(out) {}

  // --- orders of the server, and its absence ---
  // Takes over workers that another process of this incarnation started.
  void Adopt(const GenerationId& id, uint32_t first_rank, uint32_t workers);
  // Must not be called while Alive(). `report`: report the kept workers to the server as started.
  void Start(MonoTime now, const GenerationId& id, const v1::Assign& assign, bool report);
  // A repeated call with fewer workers in `keep`, or less grace, stops those too. With
  // `wait_for_probe` the stop is delayed until OnProbeEnded(), unless the grace is zero.
  void Stop(MonoTime now, absl::Duration grace, std::set<uint32_t> keep, const std::string& reason,
            bool wait_for_probe);
  void OnProbeEnded(MonoTime now);
  // The workers are killed because the server does not answer (strict fencing).
  void SetFenced() { fenced_ = true; }
  // On a new connection, reports everything to the server again. If the server lost its state and
  // does not know the generation (`known` is false), only the processes that could not be killed
  // are reported, because it has to wait for them.
  void Resync(bool known);

  // --- events of the node; they return false if the event concerns no worker here ---
  void OnRuns(const WorkerRuns& event, MonoTime now, bool report);
  void OnImported(const ProgramImported& event, MonoTime now, bool report);
  // Only the first failure is kept. `fenced_because`: the reason recorded if the workers were
  // fenced.
  bool OnDied(const WorkerDied& event, MonoTime now, const std::string& node,
              const std::string& fenced_because);
  // The job will go on without this node, so kept workers, which would wait in vain, are stopped.
  // Returns false also if the report is unchanged.
  bool OnUnkillable(const WorkerUnkillable& event, MonoTime now);
  bool OnAllGone(const AllGone& event);
  void OnMayRejoin(const WorkerMayRejoin& event);
  bool OnWaits(const WorkerWaits& event, MonoTime now);
  bool OnProgress(const WorkerProgress& event);
  void OnAlive(const WorkerAlive& event);
  void OnWrote(const WorkerWrote& event);

  // --- time ---
  // `report`: report workers that have waited for a while although the server has not ended the
  // generation. Kept workers that have not given it up when the grace is over are killed; `grace`
  // is for the message.
  void OnDeadlines(MonoTime now, bool report, absl::Duration grace);
  MonoTime Deadline(bool report) const;
  // If nothing but waiting kept workers is left, updates the phase and returns true.
  bool EndIfStopped();
  // No process is left, whatever ran before.
  void OnSupervisorLost() { phase_ = Phase::kIdle; }

  // For example "rank 3 (local rank 1)".
  std::string NameOf(uint32_t local_rank) const;

  Phase phase() const { return phase_; }
  bool running() const { return phase_ == Phase::kRunning; }
  // Whether a worker still runs and none has failed.
  bool IsHealthy() const;
  bool Alive() const { return running() || phase_ == Phase::kStopping; }
  bool HasProcesses() const { return Alive() || phase_ == Phase::kHolding; }
  // Whether all workers are already being stopped, so that a Stop that keeps none changes nothing.
  bool StopsAll() const { return phase_ == Phase::kStopping && kept_.empty(); }
  const GenerationId& id() const { return id_; }
  // The generation named in messages that concern no particular one.
  GenerationId RunningId() const { return Alive() ? id_ : GenerationId{}; }
  const Workers& workers() const { return workers_; }
  bool fenced() const { return fenced_; }
  // The first failure of its workers; the server may not know it yet.
  const std::optional<v1::Failure>& failure() const { return failure_; }

 private:
  Worker* Find(uint64_t generation, uint32_t local_rank);
  Worker* FindRunning(uint64_t generation, uint32_t local_rank);
  void OnKeptDied(uint32_t local_rank, MonoTime now);
  void SendStop(MonoTime now, absl::Duration grace);
  void ReportGivenUp(MonoTime now);
  void StopLateWorkers(MonoTime now, absl::Duration grace);
  MonoTime RejoinDeadline() const;

  CommandBuffer& out_;
  Phase phase_ = Phase::kIdle;
  GenerationId id_;
  uint32_t first_rank_ = 0;
  Workers workers_;
  bool fenced_ = false;
  std::optional<v1::Failure> failure_;
  std::optional<v1::ProgramImports> imports_;  // the last ones reported

  // The stop order. `others_gone_`: every process that is not kept is gone. `grace_over_` is when
  // the kept workers must have given the generation up and the others have ended. It is Never()
  // before the order goes out, and again once the late ones are stopped.
  std::set<uint32_t> kept_;
  std::string reason_;
  bool others_gone_ = false;
  absl::Duration grace_;
  MonoTime grace_over_ = MonoTime::Never();
  // The stop order is delayed until the probe of the workers has ended.
  bool waits_for_probe_ = false;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CORE_NODE_GENERATION_H_
