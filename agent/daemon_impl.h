// The daemon's state: the loop's, and while that waits of who handles a store operation in its
// place (event_queue.h). Wiring is in daemon.cc, what concerns its workers in daemon_workers.cc,
// and the process that stands by for them in standby.cc.
#ifndef CADRE_AGENT_DAEMON_IMPL_H_
#define CADRE_AGENT_DAEMON_IMPL_H_

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/daemon.h"
#include "agent/event_queue.h"
#include "agent/evidence/evidence_collector.h"
#include "agent/evidence/progress_watch.h"
#include "agent/local/local_service.h"
#include "agent/signal_reader.h"
#include "agent/workers/filtered_lines.h"
#include "agent/workers/port_hold.h"
#include "agent/workers/rank_output.h"
#include "agent/workers/worker_groups.h"
#include "agent/workers/worker_start.h"
#include "base/time.h"

namespace cadre {

// How one worker's bytes become lines.
struct WorkerOutput {
  LineAssembler standard_output;
  LineAssembler standard_error;
  LineAssembler progress;
};

// What stays as it was when the process was started, also where it goes on in later generations.
struct WorkerFiles {
  std::vector<std::string> logs;  // its streams in files; the first that is not empty is quoted
  std::vector<std::string> silent_logs;  // of these, those that do not come as frames too
  std::string progress_file;
  std::string directory;  // of its log files, and of its error file
};
WorkerFiles FilesOf(const supervisor::StartFrame& frame, std::string progress_file);

// A process that stands by for a worker that is lost.
struct Standby {
  std::string progress_file;
  std::string directory;  // of its log files
};

class Daemon {
 public:
  Daemon(const DaemonOptions& options, std::unique_ptr<supervisor::Client> supervisor,
         ServerLink& link, Display& display)
      : options_(options),
        supervisor_(std::move(supervisor)),
        link_(link),
        display_(display),
        filtered_stdout_(options.output.stdout_filters),
        filtered_stderr_(options.output.stderr_filters) {}

  absl::StatusOr<Exit> Run();

 private:
  absl::Status Open();
  void StartLink();
  absl::Status Loop();
  struct Ready {
    bool signals = false;
    bool worker = false;
    bool supervisor = false;
  };
  // Until there is something to do; what is readable then.
  Ready Wait();
  void ReadSupervisor();

  void Feed(const AgentEvent& event);
  void Execute(AgentCommand command);
  // The newest files of the job are to be this run's.
  void ForgetEarlierRun();
  std::string RunDirectoryHere() const;
  void TakeOver();
  absl::StatusOr<std::vector<supervisor::StartFrame>> FramesFor(const v1::Assign& assign,
                                                                DirectoryFailure* failure);
  // `first_group`: of local rank 0; those of the others follow.
  void KeepWorkers(const GenerationId& generation, const v1::Assign& assign, uint64_t first_group);
  void StartWorkersOf(const StartWorkers& command);
  void AskWorkers(const AskForCheckpoint& ask);
  void FailToStart(const StartWorkers& command, const absl::Status& why,
                   const DirectoryFailure& directory);
  void StopWorkersOf(const StopWorkers& command);
  void ToSupervisor(const supervisor::Frame& frame);

  // standby.cc
  size_t StandbysWanted() const;
  void StartStandbys();
  // The process that was this group of the supervisor's is the worker now.
  void OnStandbyPlaced(uint64_t was, uint32_t local_rank);
  // Whether it was one of them.
  bool OnStandbyExited(const supervisor::ExitedFrame& exited);

  // Its workers went with it. Another one takes its place, and the core hears of the workers' ends;
  // without another one it hears that there is none.
  void LoseSupervisor(const std::string& how);
  AllGone Gone();

  void OnFrame(const supervisor::Frame& frame);
  void OnOutput(uint32_t local_rank, const supervisor::OutputFrame& frame);
  void OnProgressLines(uint32_t local_rank, const std::string& lines);
  void PollProgress();
  // Gets ready for what the worker will write. `runs`: its process is there already.
  void Follow(uint32_t local_rank, const supervisor::StartFrame& frame, bool runs);
  // The job's newest files are this generation's.
  void LinkGeneration();
  // The directory of its rank leads to where the process writes.
  void LinkLogs(uint32_t local_rank);
  void StartWatching();
  void Collect(const CollectEvidence& command);
  void ShowLines(const std::string& lines, const LineAssembler& assembler, bool to_stderr);
  void OpenFiltered();
  void FlushOutput(uint32_t local_rank);
  void ShowStatusNow();

  const DaemonOptions& options_;
  std::unique_ptr<supervisor::Client> supervisor_;  // null once it is lost for good
  bool supervisor_works_ = false;                   // it has started a worker
  ServerLink& link_;
  Display& display_;
  FilteredLines filtered_stdout_;
  FilteredLines filtered_stderr_;
  std::vector<std::string> environment_;
  PortHold hold_;
  std::unique_ptr<SignalReader> signals_;
  std::unique_ptr<EventQueue> queue_;
  std::unique_ptr<agent::LocalService> local_;
  std::unique_ptr<AgentCore> core_;

  std::deque<AgentEvent> own_events_;  // what carrying out a command led to
  v1::JobSpec spec_;
  uint64_t incarnation_ = 0;
  uint64_t generation_ = 0;
  std::string run_;  // as v1::JobStatus has it
  std::vector<UnfitWorkers> unfit_;
  std::string earlier_verdict_;  // of the file that was there before
  WorkerGroups groups_;
  std::map<uint32_t, WorkerOutput> outputs_;
  std::map<uint32_t, WorkerFiles> files_;
  ProgressWatch watch_;
  MonoTime poll_at_ = MonoTime::Never();
  uint32_t first_rank_ = 0;
  // Processes that stand by, by group; the worker that the next ones are started like; when; and
  // the generation in which they were.
  std::map<uint64_t, Standby> standbys_;
  std::optional<supervisor::StartFrame> standby_like_;
  MonoTime standbys_at_ = MonoTime::Never();
  uint64_t standbys_of_ = 0;
  std::map<uint32_t, pid_t> pids_;  // of workers that run, by local rank
  v1::JobStatus status_;
  MonoTime status_shown_at_;
  std::optional<Exit> exit_;
  std::unique_ptr<EvidenceCollector> collector_;  // last: its thread uses queue_
};

}  // namespace cadre

#endif  // CADRE_AGENT_DAEMON_IMPL_H_
