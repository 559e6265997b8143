// Follows the workers of this node from start to end: how far they are, and, when one hangs or has
// ended, where it is. Reads a few small files; one thread, but for what it reports.
#ifndef CADRE_AGENT_EVIDENCE_WORKER_FOLLOWER_H_
#define CADRE_AGENT_EVIDENCE_WORKER_FOLLOWER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "agent/core/command.h"
#include "agent/core/event.h"
#include "agent/evidence/evidence_collector.h"
#include "agent/evidence/progress_watch.h"
#include "agent/evidence/stack_collector.h"
#include "agent/workers/node_worker.h"
#include "agent/workers/run_logs.h"
#include "base/threads/file_thread.h"
#include "base/time.h"

namespace cadre::agent {

class WorkerFollower {
 public:
  // `directory` holds the workers' pages. `files` looks at their log files. `report` gets what is
  // found, on another thread.
  WorkerFollower(std::string directory, FileThread& files,
                 const std::function<void(AgentEvent)>& report);

  // Generations that begin from now on have their pages there.
  void UseDirectory(const std::string& directory) { directory_ = directory; }
  // From now on the workers of this generation are followed, and no others. `watches_output`: a
  // timeout asks whether they write, also to log files alone.
  void Begin(uint64_t generation, const NodeWorkersByRank& workers, bool watches_output);
  // Whole lines from a worker's progress descriptor, each with its '\n'.
  std::vector<AgentEvent> OnLines(uint32_t local_rank, absl::string_view lines, MonoTime now);
  // Events for all that pages and files tell that is new since the last call.
  std::vector<AgentEvent> Poll(MonoTime now) { return watch_.Poll(now); }
  // The newest progress of each worker that showed any.
  std::vector<v1::Progress> Newest() const { return watch_.Newest(); }

  // Where the worker was when it ended like this; nullopt where nothing tells.
  std::optional<v1::RankEvidence> LastPlaceOf(uint32_t local_rank, const NodeWorker& worker,
                                              const v1::WorkerExit& exit) const;
  // Begins to look at the workers that run, in place of a look that has not ended.
  void Collect(const CollectEvidence& command, const NodeWorkersByRank& workers,
               const RunLogs& logs);
  void CancelCollecting() { collector_.Cancel(); }
  // Answers a question where the workers are.
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
