// The workers of this node: starts and stops them as the core commands, and reports their events to
// the core. Used by one thread at a time.
#ifndef CADRE_AGENT_NODE_WORKERS_H_
#define CADRE_AGENT_NODE_WORKERS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "agent/core/agent_core.h"
#include "agent/daemon.h"
#include "agent/display.h"
#include "agent/evidence/worker_follower.h"
#include "agent/generation_store.h"
#include "agent/local/local_service.h"
#include "agent/supervisor/client.h"
#include "agent/supervisor/frames.h"
#include "agent/workers/node_usage.h"
#include "agent/workers/ports.h"
#include "agent/workers/python/warm_workers.h"
#include "agent/workers/run_logs.h"
#include "agent/workers/standbys.h"
#include "agent/workers/worker_groups.h"
#include "agent/workers/worker_outputs.h"
#include "agent/workers/worker_record.h"
#include "agent/workers/worker_start.h"
#include "agent/workers/worker_supervisor.h"
#include "base/generation_id.h"
#include "base/threads/file_thread.h"
#include "base/time.h"

namespace cadre::agent {

class NodeWorkers {
 public:
  // The objects of the agent that it uses.
  struct Uses {
    Display& display;
    StatusView& status;
    LocalService& local;
    RunLogs& logs;
    // Takes events for the core. Called on the caller's thread, from within any of the methods
    // here.
    std::function<void(AgentEvent)> emit;
    // Takes events for the core on any thread.
    std::function<void(AgentEvent)> report;
  };
  // `hold`: the port held for MASTER_PORT of the first generation.
  NodeWorkers(const DaemonOptions& options, std::unique_ptr<supervisor::Client> supervisor,
              PortReservation hold, Uses uses);

  // Continues with the workers of options.adoption. The supervisor's frames about them follow.
  void AdoptWorkers();

  // --- commands of the core ---
  void Begin(const BeginJob& command);
  void Start(const StartWorkers& command);
  void Stop(const StopWorkers& command);
  // `at`: a time of BootNow().
  void HoldUntil(MonoTime at);
  void RequestCheckpoint(const AskForCheckpoint& command);
  void Signal(const SignalWorkers& command);
  void NoteEnd(const NoteEndOfScript& command);
  // Sends the signal to each worker (to its process group if it is a shell).
  void SignalAll(int signal);
  // Whether the workers' output is read. While it is not, they block once their pipes are full, and
  // do not count as silent.
  void ReadOutput(bool reads);
  bool reads_output() const { return reads_output_; }
  void Collect(const CollectEvidence& command);
  void Collect(const CollectStacks& command);

  // --- the supervisor ---
  // The caller reads its frames, and passes them to OnFrame and its end to OnSupervisorGone.
  WorkerSupervisor& worker_supervisor() { return supervisor_; }
  void OnFrame(const supervisor::Frame& frame);
  // The supervisor's death killed its workers. Another supervisor is started, and the core is told
  // of the workers' ends and of processes that could not be killed; if none can be started, the
  // core gets SupervisorLost.
  void OnSupervisorGone(const std::string& how);

  // --- time ---
  // When to call Poll, which checks what raises no event: progress, a supervisor that was stopped
  // by a signal, whether standby processes can be started.
  MonoTime next_poll() const { return poll_at_; }
  void Poll(MonoTime now);
  std::vector<v1::Progress> Progress() const { return follower_.Newest(); }

  // For accesses to the log directory from here.
  FileThread& log_files() { return files_; }

 private:
  uint64_t generation() const { return start_.environment.generation; }
  const v1::Assign& assign() const { return start_.environment.assign; }
  const v1::JobSpec& spec() const { return start_.environment.spec; }
  uint32_t RankOf(uint32_t local_rank) const { return assign().first_rank() + local_rank; }

  PrefixFields PrefixOf(uint32_t local_rank) const;
  // Restores the directory where workers find their agent if something has removed it.
  void RestoreDirectory();
  // Writes what another process needs for adoption. `first_group`: the group of local rank 0; the
  // other ranks' follow it.
  void OfferForAdoption(const GenerationId& generation, uint64_t first_group);
  void Send(const supervisor::Frame& frame);

  // --- starting a generation ---
  void EnterGeneration(uint64_t generation, const v1::Assign& assign);
  // Returns false if another process has the requested port; the workers are then reported as not
  // started.
  bool BeginStore(const StartWorkers& command);
  void FailForPort(const StartWorkers& command);
  void FailToStart(const StartWorkers& command, const v1::WorkerExit& exit);
  // Links the job's newest logs to this generation's, or reports that the workers run without log
  // files.
  void LinkLogs(const DirectoryFailure& directory);
  void Start(uint32_t local_rank, supervisor::StartFrame frame);
  // Continues a worker whose process was kept from the generation before.
  void ContinueKept(uint32_t local_rank);
  // `frame`: the frame with which the worker was or will be started; null: not known.
  void Follow(uint32_t local_rank, const supervisor::StartFrame* frame);
  void BeginFollowing();
  void StartStandbys(MonoTime now);

  // --- the supervisor's frames, and its end ---
  void OnStarted(const supervisor::StartedFrame& started);
  void OnOutput(const supervisor::OutputFrame& output);
  void OnExited(const supervisor::ExitedFrame& exited);
  void OnUnkillable(const supervisor::RemainsFrame& remains);
  void OnAllGone(const supervisor::AllGoneFrame& gone);
  void OnLeftoversGone();

  // --- events for the core ---
  // Reports that all workers write, while their output is not read.
  void ReportAllAsWriting(MonoTime now);
  void EmitKilled(uint32_t local_rank);
  void EmitAll(std::vector<AgentEvent> events);
  void EmitGone();

  const DaemonOptions& options_;
  const Uses uses_;
  WorkerSupervisor supervisor_;
  PortReservation hold_;
  GenerationStore store_;
  WorkerStartOptions start_;  // of the current generation
  WorkerGroups groups_;
  NodeWorkersByRank workers_;
  FileThread files_{{}};
  WorkerOutputs outputs_;
  Standbys standbys_;
  // How the supervisor ended whose processes SIGKILL has not all ended; empty: none are left.
  std::string lost_supervisor_;
  WarmNotes warm_notes_;
  bool reads_output_ = true;
  MonoTime poll_at_ = MonoTime::Never();
  UsageWatch usage_;
  WorkerFollower follower_;  // last, because its thread calls `report`
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_NODE_WORKERS_H_
