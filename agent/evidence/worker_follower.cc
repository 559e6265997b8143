#include "agent/evidence/worker_follower.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace cadre::agent {

WorkerFollower::WorkerFollower(std::string directory, FileThread& files,
                               const std::function<void(AgentEvent)>& report)
    : directory_(std::move(directory)), watch_(files), collector_(report), stacks_(report) {}

void WorkerFollower::Begin(uint64_t generation, const NodeWorkersByRank& workers,
                           bool watches_output) {
  generation_ = generation;
  std::vector<ProgressWatch::Worker> watched;
  for (const auto& [local_rank, worker] : workers) {
    ProgressWatch::Worker followed = {local_rank, worker.rank, {}, worker.files.progress_file};
    if (watches_output) followed.output_files = worker.files.silent_logs;
    watched.push_back(std::move(followed));
  }
  watch_.Start(directory_, generation, std::move(watched));
}

std::vector<AgentEvent> WorkerFollower::OnLines(uint32_t local_rank, absl::string_view lines,
                                                MonoTime now) {
  if (lines.empty()) return {};
  std::vector<AgentEvent> events;
  for (const absl::string_view line : absl::StrSplit(absl::StripSuffix(lines, "\n"), '\n')) {
    std::vector<AgentEvent> of_line = watch_.OnLine(local_rank, line, now);
    std::move(of_line.begin(), of_line.end(), std::back_inserter(events));
  }
  return events;
}

std::optional<v1::RankEvidence> WorkerFollower::LastPlaceOf(uint32_t local_rank,
                                                            const NodeWorker& worker,
                                                            const v1::WorkerExit& exit) const {
  return LastPlace(directory_, {generation_, static_cast<int>(worker.rank)},
                   {local_rank, worker.rank, worker.pid}, exit);
}

void WorkerFollower::Collect(const CollectEvidence& command, const NodeWorkersByRank& workers,
                             const RunLogs& logs) {
  EvidenceRequest request;
  request.generation = command.generation;
  request.page_directory = directory_;
  request.briefly = command.briefly;
  for (const auto& [local_rank, worker] : workers) {
    if (worker.pid == 0) continue;
    EvidenceRequest::Worker probed;
    probed.local_rank = local_rank;
    probed.rank = worker.rank;
    probed.pid = worker.pid;
    probed.overdue = std::count(command.overdue.begin(), command.overdue.end(), local_rank) > 0;
    probed.file = logs.RankPath(worker.rank, "evidence.txt");
    probed.logs = worker.files.logs;
    request.workers.push_back(std::move(probed));
  }
  collector_.Start(std::move(request));
}

void WorkerFollower::CollectStacks(const v1::AskStacks& ask, const NodeWorkersByRank& workers) {
  StackRequest request;
  request.generation = generation_;
  request.call = ask.call();
  request.question = ask.question();
  request.directory = directory_;
  for (const auto& [local_rank, worker] : workers) {
    request.workers.push_back({local_rank, worker.rank, worker.pid});
  }
  stacks_.Ask(std::move(request));
}

}  // namespace cadre::agent
