#include "agent/evidence/evidence_collector.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agent/evidence/native_stacks.h"
#include "agent/evidence/process_look.h"
#include "agent/evidence/python_dump.h"
#include "agent/evidence/python_stack.h"
#include "agent/evidence/rank_evidence.h"
#include "agent/run_files.h"
#include "base/clock.h"
#include "base/utf8.h"

namespace cadre::agent {
namespace {

constexpr int64_t kLastLinesBytes = 4 << 10;

using Sessions = std::map<pid_t, std::vector<pid_t>>;

// What each process answered; without those that did not.
using PythonStacks = std::map<pid_t, std::string>;

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

std::string SourceLine(const std::string& path, int number) {
  std::ifstream file(path);
  std::string line;
  for (int i = 0; i < number && std::getline(file, line); ++i) {
  }
  return std::string(absl::StripAsciiWhitespace(line));
}

PythonStacks AskForStacks(const EvidenceRequest& request, const Sessions& sessions,
                          MonoTime deadline) {
  PythonStacks stacks;
  for (const EvidenceRequest::Worker& worker : request.workers) {
    const auto session = sessions.find(worker.pid);
    if (session == sessions.end()) continue;
    const std::string file =
        StackFilePath(request.page_directory, request.generation, static_cast<int>(worker.rank));
    for (const pid_t pid : session->second) {
      std::string text = PythonStackOf(pid, file, deadline);
      if (!text.empty()) stacks.emplace(pid, std::move(text));
    }
  }
  return stacks;
}

// Where the worker itself is, or where the process that it loads its data with is.
PythonPlace PythonPlaceOf(pid_t worker, const std::vector<pid_t>& processes,
                          const PythonStacks& stacks) {
  const auto own = stacks.find(worker);
  if (own == stacks.end()) return {};
  PythonPlace place = PlaceOf(MainThreadOf(own->second), SourceLine);
  if (place.activity != v1::IN_DATA_LOADER) return place;
  for (const pid_t pid : processes) {
    const auto stack = stacks.find(pid);
    if (pid == worker || stack == stacks.end()) continue;
    const PythonPlace loads = PlaceOf(MainThreadOf(stack->second), SourceLine);
    if (loads.activity != v1::IN_OWN_CODE || loads.where.empty()) continue;
    return {place.activity, loads.what, loads.where};
  }
  return place;
}

Finding Find(const EvidenceRequest& request, const EvidenceRequest::Worker& worker,
             const std::vector<pid_t>& processes, double cores, const PythonStacks& stacks) {
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
  AddPython(PythonPlaceOf(worker.pid, processes, stacks), &evidence);
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
  const PythonStacks stacks = AskForStacks(request, sessions, first + kBusyWindow);
  absl::SleepFor(first + kBusyWindow - MonoNow());

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
    findings.push_back(Find(request, worker, processes, cores, stacks));
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
        const auto python = stacks.find(pid);
        if (python == stacks.end()) continue;
        absl::StrAppend(&finding.text, "== Python stacks of process ", pid, "\n", python->second);
      }
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
