#include "agent/evidence/evidence_collector.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/evidence/native_stacks.h"
#include "agent/evidence/process_look.h"
#include "agent/evidence/rank_evidence.h"
#include "agent/run_files.h"
#include "base/clock.h"
#include "base/utf8.h"

namespace cadre::agent {
namespace {

constexpr int64_t kLastLinesBytes = 4 << 10;

using Sessions = std::map<pid_t, std::vector<pid_t>>;

// One worker and what was found of it.
struct Finding {
  EvidenceRequest::Worker worker;
  v1::RankEvidence evidence;
  std::string text;
};

// The last whole lines of the first of these files that has any.
std::string LastLines(const std::vector<std::string>& logs) {
  for (const std::string& log : logs) {
    std::ifstream file(log, std::ios::binary | std::ios::ate);
    const int64_t size = file ? static_cast<int64_t>(file.tellg()) : 0;
    if (size <= 0) continue;
    const int64_t from = std::max<int64_t>(0, size - kLastLinesBytes);
    std::string text(static_cast<size_t>(size - from), '\0');
    file.seekg(from);
    file.read(&text[0], static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<size_t>(std::max<std::streamsize>(file.gcount(), 0)));
    const size_t newline = text.find('\n');
    if (from > 0 && newline != std::string::npos) text.erase(0, newline + 1);
    return text;
  }
  return "";
}

Finding Find(const EvidenceRequest& request, const EvidenceRequest::Worker& worker,
             const std::vector<pid_t>& processes, double cores) {
  Finding finding;
  finding.worker = worker;
  v1::RankEvidence& evidence = finding.evidence;
  evidence.set_rank(static_cast<int32_t>(worker.rank));
  evidence.set_local_rank(static_cast<int32_t>(worker.local_rank));
  evidence.set_pid(worker.pid);
  evidence.set_bucket(-1);
  evidence.set_file(worker.file);
  evidence.set_last_lines(ReplaceInvalidUtf8(LastLines(worker.logs)));
  ProcessLook look = LookAt(processes);
  look.cores = cores;
  AddProcesses(look, &evidence);
  const absl::StatusOr<ProgressSnapshot> page = ReadProgressPage(
      ProgressPagePath(request.page_directory, request.generation, static_cast<int>(worker.rank)));
  const MonoTime now = MonoNow();
  if (page.ok()) AddPage(*page, now, &evidence);
  evidence.set_summary(EvidenceSummary(evidence));
  finding.text =
      absl::StrCat("rank ", worker.rank, " in generation ", request.generation,
                   worker.overdue ? ", over its timeout: " : ": ", evidence.summary(), "\n",
                   page.ok() ? PageText(*page, now) : "", "== last lines\n", evidence.last_lines());
  return finding;
}

// The likely culprits first: time for stacks is short.
bool IsMoreTelling(const Finding& a, const Finding& b) {
  const auto key = [](const Finding& finding) {
    return std::make_pair(finding.evidence.phase() == v1::WAITING, !finding.worker.overdue);
  };
  return key(a) < key(b);
}

}  // namespace

std::optional<v1::RankEvidence> LastPage(const std::string& page_directory, const PageOwner& owner,
                                         uint32_t local_rank) {
  const absl::StatusOr<ProgressSnapshot> page =
      ReadProgressPage(ProgressPagePath(page_directory, owner.generation, owner.rank));
  if (!page.ok()) return std::nullopt;
  v1::RankEvidence evidence;
  evidence.set_local_rank(static_cast<int32_t>(local_rank));
  evidence.set_pid(page->pid);
  evidence.set_silent_seconds(-1);
  AddPage(*page, MonoNow(), &evidence);
  evidence.set_summary(EvidenceSummary(evidence));
  return evidence;
}

EvidenceCollector::~EvidenceCollector() {
  Cancel();
  if (thread_.joinable()) thread_.join();
}

void EvidenceCollector::Start(EvidenceRequest request) {
  Cancel();
  if (thread_.joinable()) thread_.join();
  cancelled_ = false;
  thread_ = std::thread([this, request = std::move(request)] { Run(request); });
}

void EvidenceCollector::Run(const EvidenceRequest& request) {
  std::set<pid_t> pids;
  for (const EvidenceRequest::Worker& worker : request.workers) pids.insert(worker.pid);
  const Sessions sessions = FindSessions(pids);
  std::map<pid_t, int64_t> busy_ns;
  const MonoTime first = MonoNow();
  for (const auto& [pid, processes] : sessions) busy_ns[pid] = BusyNs(processes);
  std::this_thread::sleep_for(absl::ToChronoMilliseconds(kBusyWindow));

  std::vector<Finding> findings;
  EvidenceFound found{request.generation, {}};
  for (const EvidenceRequest::Worker& worker : request.workers) {
    const auto session = sessions.find(worker.pid);
    const std::vector<pid_t> processes =
        session == sessions.end() ? std::vector<pid_t>() : session->second;
    const double elapsed_ns = absl::ToDoubleNanoseconds(MonoNow() - first);
    const int64_t before = session == sessions.end() ? 0 : busy_ns.at(worker.pid);
    const double cores =
        std::max(0.0, static_cast<double>(BusyNs(processes) - before) / elapsed_ns);
    findings.push_back(Find(request, worker, processes, cores));
    found.ranks.push_back(findings.back().evidence);
  }
  report_(std::move(found));

  std::sort(findings.begin(), findings.end(), IsMoreTelling);
  const MonoTime deadline = MonoNow() + kStacksTime;
  for (Finding& finding : findings) {
    if (finding.worker.file.empty()) continue;
    const auto session = sessions.find(finding.worker.pid);
    if (session != sessions.end()) {
      absl::StrAppend(&finding.text, DescribeProcesses(session->second));
      for (const pid_t pid : session->second) {
        absl::StrAppend(&finding.text, "== native stacks of process ", pid, "\n",
                        NativeStacks(pid, deadline, cancelled_));
      }
    }
    // Without the file the rest of the evidence is still there.
    WriteFile(finding.worker.file, finding.text).IgnoreError();
  }
  report_(EvidenceDone{request.generation});
}

}  // namespace cadre::agent
