#include "agent/evidence/evidence_collector.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/evidence/native_stacks.h"
#include "agent/evidence/process_look.h"
#include "agent/evidence/python_dump.h"
#include "agent/evidence/rank_evidence.h"
#include "agent/run_files.h"
#include "base/clock.h"
#include "base/own_files.h"
#include "base/scoped_fd.h"
#include "base/utf8.h"

namespace cadre::agent {
namespace {

constexpr int64_t kLastLinesBytes = 4 << 10;

// One worker and what was found of it.
struct Finding {
  EvidenceRequest::Worker worker;
  WorkerLook look;
  v1::RankEvidence evidence;
  std::string text;
};

// The last whole lines of the first of these files that has any.
std::string LastLines(const std::vector<std::string>& logs) {
  for (const std::string& log : logs) {
    const absl::StatusOr<ScopedFd> file = OpenOwnFile(log, O_RDONLY);
    struct stat info;
    if (!file.ok() || fstat(file->get(), &info) != 0 || info.st_size <= 0) continue;
    const int64_t from = std::max<int64_t>(0, info.st_size - kLastLinesBytes);
    std::string text(static_cast<size_t>(info.st_size - from), '\0');
    text.resize(
        static_cast<size_t>(std::max<ssize_t>(pread(file->get(), &text[0], text.size(), from), 0)));
    const size_t newline = text.find('\n');
    if (from > 0 && newline != std::string::npos) text.erase(0, newline + 1);
    return text;
  }
  return "";
}

// Of files that may be where nothing answers.
std::string LastLinesOf(FileThread& files, const std::vector<std::string>& logs) {
  return files.ResultWithin(kStandsStillAfter, [logs] { return LastLines(logs); }).value_or("");
}

Finding FindingOf(const EvidenceRequest& request, const EvidenceRequest::Worker& worker,
                  FileThread& files, WorkerLook look) {
  Finding finding;
  finding.worker = worker;
  finding.look = std::move(look);
  v1::RankEvidence& evidence = finding.evidence;
  evidence = finding.look.evidence;
  if (request.briefly) return finding;
  evidence.set_file(worker.file);
  evidence.set_last_lines(ReplaceInvalidUtf8(LastLinesOf(files, worker.logs)));
  const std::optional<ProgressSnapshot>& page = finding.look.page;
  finding.text = absl::StrCat("rank ", worker.rank, " in generation ", request.generation,
                              worker.overdue ? ", over its timeout: " : ": ", evidence.summary(),
                              "\n", page.has_value() ? PageText(*page, finding.look.at) : "",
                              CallsText(evidence), "== last lines\n", evidence.last_lines());
  return finding;
}

// Those that faulthandler writes stacks at.
bool IsFatal(int signal) {
  return signal == SIGSEGV || signal == SIGABRT || signal == SIGBUS || signal == SIGFPE ||
         signal == SIGILL;
}

std::string LastStack(const std::string& stack_file, pid_t process, const v1::WorkerExit& exit) {
  // What a process that the worker started died of is in the same file.
  if (IsFatal(exit.signal())) return FatalStackIn(stack_file);
  if (exit.signal() != 0 || exit.exit_code() == 0) return "";
  return ExitStackIn(stack_file, process, exit.exit_code());
}

// The likely culprits first: time for stacks is short.
bool IsMoreTelling(const Finding& a, const Finding& b) {
  const auto key = [](const Finding& finding) {
    return std::make_pair(finding.evidence.phase() == v1::WAITING, !finding.worker.overdue);
  };
  return key(a) < key(b);
}

// Without the file the rest of the evidence is still there.
void WriteFinding(FileThread& files, const Finding& finding) {
  files.RunWithin(kStandsStillAfter, [path = finding.worker.file, text = finding.text] {
    WriteFile(path, text).IgnoreError();
  });
}

void AddStacks(Finding* finding) {
  absl::StrAppend(&finding->text, DescribeProcesses(finding->look.processes));
  for (const auto& [pid, python] : finding->look.python) {
    if (!python.ok()) continue;
    absl::StrAppend(&finding->text, "== Python stacks of process ", pid, "\n", *python);
  }
}

// Those of the processes whose interpreter has said where they are, or of those of which nothing
// else tells.
void AddNativeStacks(bool said, const NativeStacksOf& native, MonoTime deadline,
                     const std::atomic<bool>& cancelled, Finding* finding) {
  for (const pid_t pid : finding->look.processes) {
    if (finding->look.python.at(pid).ok() != said) continue;
    absl::StrAppend(&finding->text, "== native stacks of process ", pid, "\n",
                    native(pid, deadline, cancelled));
  }
}

}  // namespace

std::optional<v1::RankEvidence> LastPlace(const std::string& page_directory, const PageOwner& owner,
                                          const LookedAtWorker& worker,
                                          const v1::WorkerExit& exit) {
  const absl::StatusOr<ProgressSnapshot> page =
      ReadProgressPage(ProgressPagePath(page_directory, owner.generation, owner.rank));
  const std::string last =
      LastStack(StackFilePath(page_directory, owner.generation, owner.rank), worker.pid, exit);
  if (!page.ok() && last.empty()) return std::nullopt;
  v1::RankEvidence evidence;
  evidence.set_local_rank(static_cast<int32_t>(worker.local_rank));
  evidence.set_pid(page.ok() ? page->pid : worker.pid);
  evidence.set_bucket(-1);
  evidence.set_silent_seconds(-1);
  if (page.ok()) AddPage(*page, MonoNow(), &evidence);
  if (!last.empty()) AddPython(PlaceOfProcess(worker.pid, last), &evidence);
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
  std::vector<LookedAtWorker> workers;
  for (const EvidenceRequest::Worker& worker : request.workers) {
    workers.push_back({worker.local_rank, worker.rank, worker.pid});
  }
  LookOptions options;
  options.generation = request.generation;
  options.directory = request.page_directory;
  options.calls = true;
  // Whoever cancels wants the stacks of the interpreters all the same, which take no time.
  const std::atomic<bool> whole{false};
  std::vector<WorkerLook> looks = LookAtWorkers(workers, options, whole);
  std::vector<Finding> findings;
  EvidenceFound found{request.generation, {}};
  for (size_t i = 0; i < looks.size(); ++i) {
    findings.push_back(FindingOf(request, request.workers[i], files_, std::move(looks[i])));
    found.ranks.push_back(findings.back().evidence);
  }
  report_(std::move(found));
  if (request.briefly) return report_(EvidenceDone{request.generation});

  std::sort(findings.begin(), findings.end(), IsMoreTelling);
  findings.erase(std::remove_if(findings.begin(), findings.end(),
                                [](const Finding& each) { return each.worker.file.empty(); }),
                 findings.end());
  for (Finding& finding : findings) {
    AddStacks(&finding);
    WriteFinding(files_, finding);
  }
  const MonoTime begin = MonoNow();
  for (const bool said : {false, true}) {
    const MonoTime deadline = begin + (said ? kStacksTimeBesidePython : kStacksTime);
    for (Finding& finding : findings) {
      const size_t written = finding.text.size();
      AddNativeStacks(said, native_, deadline, cancelled_, &finding);
      if (finding.text.size() > written) WriteFinding(files_, finding);
    }
  }
  report_(EvidenceDone{request.generation});
}

}  // namespace cadre::agent
