// The workers of this node: starts and stops them as the core's commands say, and tells the core
// what becomes of them. Used by one thread at a time.
#ifndef CADRE_AGENT_NODE_WORKERS_H_
#define CADRE_AGENT_NODE_WORKERS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "agent/core/command.h"
#include "agent/core/event.h"
#include "agent/daemon_options.h"
#include "agent/display.h"
#include "agent/evidence/worker_follower.h"
#include "agent/generation_store.h"
#include "agent/local/local_service.h"
#include "agent/status_view.h"
#include "agent/supervisor/client.h"
#include "agent/supervisor/frames.h"
#include "agent/workers/node_usage.h"
#include "agent/workers/node_worker.h"
#include "agent/workers/port_hold.h"
#include "agent/workers/python/warm_notes.h"
#include "agent/workers/rank_output.h"
#include "agent/workers/run_logs.h"
#include "agent/workers/standbys.h"
#include "agent/workers/worker_groups.h"
#include "agent/workers/worker_outputs.h"
#include "agent/workers/worker_start.h"
#include "agent/workers/worker_supervisor.h"
#include "base/generation_id.h"
#include "base/threads/file_thread.h"
#include "base/time.h"

namespace cadre::agent {

class NodeWorkers {
 public:
  // What it uses of its agent.
  struct Uses {
    Display& display;
    StatusView& status;
    LocalService& local;
    RunLogs& logs;
    // Takes events for the core, in the caller's thread and from within any of the methods here.
    std::function<void(AgentEvent)> emit;
    // The same in any thread.
    std::function<void(AgentEvent)> report;
  };
  // `hold`: MASTER_PORT of the first generation.
  NodeWorkers(const DaemonOptions& options, std::unique_ptr<supervisor::Client> supervisor,
              PortHold hold, Uses uses);

  // Goes on with the workers of options.adoption. What the supervisor says of them follows.
  void TakeOver();

  // The core's commands.
  void Begin(const BeginJob& command);
  void Start(const StartWorkers& command);
  void Stop(const StopWorkers& command);
  // `at`: of BootNow().
  void HoldUntil(MonoTime at);
  void Ask(const AskForCheckpoint& command);
  // To the process group of each.
  void Signal(int signal);
  // Whether what they write is taken. Else they wait as soon as their pipes are full, and are not
  // silent meanwhile.
  void ReadOutput(bool reads);
  bool reads_output() const { return reads_output_; }
  void Collect(const CollectEvidence& command);
  void Collect(const CollectStacks& command);

  // What is read from it goes to OnFrame, and its end to OnSupervisorGone.
  WorkerSupervisor& worker_supervisor() { return supervisor_; }
  void OnFrame(const supervisor::Frame& frame);
  // Its workers were killed with it. Another one takes its place, and the core hears of the
  // workers' ends, and of those that SIGKILL has not ended; without another one it hears that there
  // is none.
  void OnSupervisorGone(const std::string& how);

  // When to call Poll, which looks at what does not come by itself: progress, a supervisor that was
  // stopped, whether processes can stand by.
  MonoTime next_poll() const { return poll_at_; }
  void Poll(MonoTime now);
  std::vector<v1::Progress> Progress() const { return follower_.Newest(); }

  // For what is done in the log directory here.
  FileThread& log_files() { return files_; }

 private:
  uint64_t generation() const { return start_.environment.generation; }
  const v1::Assign& assign() const { return start_.environment.assign; }
  const v1::JobSpec& spec() const { return start_.environment.spec; }
  uint32_t RankOf(uint32_t local_rank) const { return assign().first_rank() + local_rank; }

  void NobodyIsSilent(MonoTime now);
  PrefixFields PrefixOf(uint32_t local_rank) const;

  void Enter(uint64_t generation, const v1::Assign& assign);
  // Where workers find their agent, if the system has removed it.
  void RestoreDirectory();
  void Start(uint32_t local_rank, supervisor::StartFrame frame);
  // Its process was kept from the generation before.
  void GoOn(uint32_t local_rank);
  // `frame`: that with which it is, or was, started; null: not known.
  void Follow(uint32_t local_rank, const supervisor::StartFrame* frame);
  // False: somebody else has the port that was asked for, and the workers are reported as not
  // started.
  bool BeginStore(const StartWorkers& command);
  void FailForPort(const StartWorkers& command);
  void FailToStart(const StartWorkers& command, const v1::WorkerExit& exit);
  // The job's newest files are this generation's; or its workers run without any.
  void LinkLogs(const DirectoryFailure& directory);
  // What another process needs to carry on. `first_group`: of local rank 0; those of the others
  // follow.
  void OfferForAdoption(const GenerationId& generation, uint64_t first_group);
  void StartStandbys(MonoTime now);
  void BeginWatching();

  void OnStarted(const supervisor::StartedFrame& started);
  void OnOutput(const supervisor::OutputFrame& output);
  void OnExited(const supervisor::ExitedFrame& exited);
  void OnRemains(const supervisor::RemainsFrame& remains);
  void OnAllGone(const supervisor::AllGoneFrame& gone);
  void OnLeftoversGone();
  void EmitKilled(uint32_t local_rank);
  void EmitAll(std::vector<AgentEvent> events);
  void EmitGone();
  void Send(const supervisor::Frame& frame);

  const DaemonOptions& options_;
  const Uses uses_;
  WorkerSupervisor supervisor_;
  PortHold hold_;
  GenerationStore store_;
  WorkerStartOptions start_;  // of the generation that is here
  WorkerGroups groups_;
  NodeWorkersByRank workers_;
  FileThread files_{{}};
  WorkerOutputs outputs_;
  Standbys standbys_;
  // How the supervisor ended whose leftovers SIGKILL has not ended; empty: there are none.
  std::string lost_supervisor_;
  WarmNotes warm_notes_;
  bool reads_output_ = true;
  MonoTime poll_at_ = MonoTime::Never();
  UsageWatch usage_;
  WorkerFollower follower_;  // last: its thread reports
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_NODE_WORKERS_H_
