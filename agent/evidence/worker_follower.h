// Follows the workers of this node from start to end: their progress (progress_watch.h) and, when
// one hangs or has ended, its position (evidence_collector.h). Used by one thread, the daemon's
// loop, except for `report`.
#ifndef CADRE_AGENT_EVIDENCE_WORKER_FOLLOWER_H_
#define CADRE_AGENT_EVIDENCE_WORKER_FOLLOWER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "agent/core/agent_core.h"
#include "agent/evidence/evidence_collector.h"
#include "agent/evidence/progress_watch.h"
#include "agent/workers/run_logs.h"
#include "agent/workers/worker_record.h"
#include "base/threads/file_thread.h"
#include "base/time.h"
#include "proto/rendezvous.pb.h"

namespace cadre::agent {

class WorkerFollower {
 public:
  // `directory` holds the workers' progress pages. `files` reads their log files. `report` gets the
  // findings, on another thread.
  WorkerFollower(std::string directory, FileThread& files,
                 const std::function<void(AgentEvent)>& report);

  // The directory for the pages of generations that begin from now on.
  void UseDirectory(const std::string& directory) { directory_ = directory; }
  // Follows the workers of this generation from now on, and no others. `watches_output`: a timeout
  // requires that they write output, including to log files alone.
  void Begin(uint64_t generation, const NodeWorkersByRank& workers, bool watches_output);
  // Whole lines from a worker's progress descriptor, each with its '\n'.
  std::vector<AgentEvent> OnLines(uint32_t local_rank, absl::string_view lines, MonoTime now);
  // Events for all changes in pages and files since the last call.
  std::vector<AgentEvent> Poll(MonoTime now) { return watch_.Poll(now); }
  // The newest progress of each worker that has shown any.
  std::vector<v1::Progress> Newest() const { return watch_.Newest(); }

  // The position at which the worker ended with this exit; nullopt if it is not known.
  std::optional<v1::RankEvidence> LastPlaceOf(uint32_t local_rank, const NodeWorker& worker,
                                              const v1::WorkerExit& exit) const;
  // Starts a probe of the running workers, in place of one that has not ended.
  void Collect(const CollectEvidence& command, const NodeWorkersByRank& workers,
               const RunLogs& logs);
  void CancelCollecting() { collector_.Cancel(); }
  // Answers a request for the workers' stacks.
  void CollectStacks(const v1::AskStacks& ask, const NodeWorkersByRank& workers);

 private:
  std::string directory_;
  uint64_t generation_ = 0;
  ProgressWatch watch_;
  EvidenceCollector collector_;
  StackCollector stacks_;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_EVIDENCE_WORKER_FOLLOWER_H_
