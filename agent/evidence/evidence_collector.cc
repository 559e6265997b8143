#include "agent/evidence/evidence_collector.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/evidence/native_stacks.h"
#include "agent/evidence/python_stack.h"
#include "agent/evidence/worker_probe.h"
#include "agent/run_files.h"
#include "base/clock.h"
#include "base/own_files.h"
#include "base/scoped_fd.h"
#include "base/text.h"

namespace cadre::agent {
namespace {

constexpr int64_t kLastLinesBytes = 4 << 10;

// One worker and the findings about it.
struct Finding {
  EvidenceRequest::Worker worker;
  WorkerProbe probe;
  v1::RankEvidence evidence;
  std::string text;
};

// The last whole lines of the first of these files that has any.
std::string LastLines(const std::vector<std::string>& logs) {
  for (const std::string& log : logs) {
    // It may be a link to a file that the user named.
    const absl::StatusOr<ScopedFd> file = OpenFileToRead(log);
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

// The same with a time limit, since the file systems of the files may not answer.
std::string LastLinesOf(FileThread& files, const std::vector<std::string>& logs) {
  return files.ResultWithin(kFileTaskHungAfter, [logs] { return LastLines(logs); }).value_or("");
}

Finding FindingOf(const EvidenceRequest& request, const EvidenceRequest::Worker& worker,
                  FileThread& files, WorkerProbe probe) {
  Finding finding;
  finding.worker = worker;
  finding.probe = std::move(probe);
  v1::RankEvidence& evidence = finding.evidence;
  evidence = finding.probe.evidence;
  if (request.briefly) return finding;
  evidence.set_file(worker.file);
  evidence.set_last_lines(ReplaceInvalidUtf8(LastLinesOf(files, worker.logs)));
  const std::optional<ProgressSnapshot>& page = finding.probe.page;
  finding.text = absl::StrCat("rank ", worker.rank, " in generation ", request.generation,
                              worker.overdue ? ", over its timeout: " : ": ", evidence.summary(),
                              "\n", page.has_value() ? PageText(*page, finding.probe.at) : "",
                              CallsText(evidence), "== last lines\n", evidence.last_lines());
  return finding;
}

// The signals on which faulthandler dumps stacks.
bool IsFatal(int signal) {
  return signal == SIGSEGV || signal == SIGABRT || signal == SIGBUS || signal == SIGFPE ||
         signal == SIGILL;
}

std::string LastStack(const std::string& stack_file, pid_t process, const v1::WorkerExit& exit) {
  // The file may also contain the stack of a process that the worker started and that a signal
  // ended.
  if (IsFatal(exit.signal())) return FatalStackIn(stack_file);
  if (exit.signal() != 0 || exit.exit_code() == 0) return "";
  return ExitStackIn(stack_file, process, exit.exit_code());
}

// The likely culprits come first, because the time for stacks is short.
bool IsMoreTelling(const Finding& a, const Finding& b) {
  const auto key = [](const Finding& finding) {
    return std::make_pair(finding.evidence.phase() == v1::WAITING, !finding.worker.overdue);
  };
  return key(a) < key(b);
}

// An error is ignored, because the rest of the evidence does not need the file.
void WriteFinding(FileThread& files, const Finding& finding) {
  files.RunWithin(kFileTaskHungAfter, [path = finding.worker.file, text = finding.text] {
    WriteFile(path, text).IgnoreError();
  });
}

void AddStacks(Finding* finding) {
  absl::StrAppend(&finding->text, DescribeProcesses(finding->probe.processes));
  for (const auto& [pid, python] : finding->probe.python) {
    if (!python.ok()) continue;
    absl::StrAppend(&finding->text, "== Python stacks of process ", pid, "\n", *python);
  }
}

// Adds the native stacks of those processes whose Python stack is known (`has_python`), or of those
// about which nothing else is known.
void AddNativeStacks(bool has_python, const NativeStacksOf& native, MonoTime deadline,
                     const std::atomic<bool>& cancelled, Finding* finding) {
  for (const pid_t pid : finding->probe.processes) {
    if (finding->probe.python.at(pid).ok() != has_python) continue;
    absl::StrAppend(&finding->text, "== native stacks of process ", pid, "\n",
                    native(pid, deadline, cancelled));
  }
}

}  // namespace

std::optional<v1::RankEvidence> LastPlace(const std::string& page_directory, const PageOwner& owner,
                                          const ProbedWorker& worker, const v1::WorkerExit& exit) {
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
  std::vector<ProbedWorker> workers;
  for (const EvidenceRequest::Worker& worker : request.workers) {
    workers.push_back({worker.local_rank, worker.rank, worker.pid});
  }
  ProbeOptions options;
  options.generation = request.generation;
  options.directory = request.page_directory;
  options.calls = true;
  // A cancelled probe still needs the interpreters' stacks, which take almost no time.
  const std::atomic<bool> whole{false};
  std::vector<WorkerProbe> probes = ProbeWorkers(workers, options, whole);
  std::vector<Finding> findings;
  EvidenceFound found{request.generation, {}};
  for (size_t i = 0; i < probes.size(); ++i) {
    findings.push_back(FindingOf(request, request.workers[i], files_, std::move(probes[i])));
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
  for (const bool has_python : {false, true}) {
    const MonoTime deadline = begin + (has_python ? kStacksTimeBesidePython : kStacksTime);
    for (Finding& finding : findings) {
      const size_t written = finding.text.size();
      AddNativeStacks(has_python, native_, deadline, cancelled_, &finding);
      if (finding.text.size() > written) WriteFinding(files_, finding);
    }
  }
  report_(EvidenceDone{request.generation});
}

namespace {

// Every thread of every process of the worker.
std::string TextOf(const WorkerProbe& probe, bool native, const std::atomic<bool>& cancelled) {
  std::string text;
  const MonoTime deadline = MonoNow() + kNativeStacksTime;
  for (const pid_t pid : probe.processes) {
    absl::StrAppend(&text, "== process ", pid, "\n");
    const auto python = probe.python.find(pid);
    if (python != probe.python.end() && python->second.ok()) {
      absl::StrAppend(&text, *python->second);
    } else if (python != probe.python.end()) {
      absl::StrAppend(&text, "no Python stack: ", python->second.status().message(), "\n",
                      DescribeThreads(pid));
    }
    if (!native) continue;
    absl::StrAppend(&text, "== native stacks of process ", pid, "\n",
                    NativeStacks(pid, deadline, cancelled));
  }
  return Shortened(ReplaceInvalidUtf8(text), kMaxRankTextBytes);
}

v1::RankStack StackOf(const WorkerProbe& probe) {
  v1::RankStack stack;
  *stack.mutable_evidence() = probe.evidence;
  const pid_t program = probe.program();
  const auto python = probe.python.find(program);
  if (python == probe.python.end()) {
    stack.set_no_python("the worker has no process now");
  } else if (!python->second.ok()) {
    stack.set_no_python(std::string(python->second.status().message()));
  } else {
    AddFrames(
        *python->second,
        [program](const std::string& file, int line) { return SourceLine(program, file, line); },
        &stack);
    if (stack.frames_size() == 0) stack.set_no_python("the interpreter's stack has no frames");
  }
  return stack;
}

}  // namespace

StackCollector::~StackCollector() {
  {
    const absl::MutexLock lock(&mutex_);
    cancelled_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void StackCollector::Ask(StackRequest request) {
  bool taken = false;
  {
    const absl::MutexLock lock(&mutex_);
    taken = waiting_.size() < kMaxStackQuestions;
    if (taken) waiting_.push_back(std::move(request));
  }
  if (!taken) {
    v1::NodeStacks stacks;
    stacks.set_why("too many requests for stacks are pending on this node; try again later");
    return Answer(request, std::move(stacks));
  }
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
}

void StackCollector::Run() {
  for (;;) {
    StackRequest request;
    {
      const absl::MutexLock lock(&mutex_);
      const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return cancelled_ || !waiting_.empty();
      };
      mutex_.Await(absl::Condition(&ready));
      if (cancelled_) return;
      request = waiting_.front();
    }
    v1::NodeStacks stacks = Collect(request);
    if (!cancelled_) Answer(request, std::move(stacks));
    // Removed only now, since the request under way counts towards kMaxStackQuestions.
    const absl::MutexLock lock(&mutex_);
    waiting_.pop_front();
  }
}

v1::NodeStacks StackCollector::Collect(const StackRequest& request) const {
  ProbeOptions options;
  options.generation = request.generation;
  options.directory = request.directory;
  options.answers = kStackAnswersTime;
  options.answer = kStackAnswerTime;
  std::vector<ProbedWorker> workers;
  for (const ProbedWorker& worker : request.workers) {
    if (request.question.one_rank() && worker.rank != request.question.rank()) continue;
    workers.push_back(worker);
  }
  const std::vector<WorkerProbe> probes = ProbeWorkers(workers, options, cancelled_);
  std::vector<v1::RankStack> ranks;
  for (size_t i = 0; i < probes.size(); ++i) {
    ranks.push_back(StackOf(probes[i]));
    if (!request.question.one_rank()) continue;
    ranks.back().set_text(TextOf(probes[i], request.question.native(), cancelled_));
  }
  return NodeStacksOf(std::move(ranks));
}

void StackCollector::Answer(const StackRequest& request, v1::NodeStacks stacks) const {
  stacks.set_call(request.call);
  report_(StacksFound{request.generation, std::move(stacks)});
}

namespace {

std::string Name(absl::string_view text) {
  return OneLine(ReplaceInvalidUtf8(text), kMaxFrameNameBytes);
}

// Whether the interpreter left out calls of the last thread that it printed.
bool IsCut(absl::string_view dump) {
  const size_t cut = dump.rfind("\n  ...");
  return cut != dump.npos && dump.find("hread 0x", cut) == dump.npos;
}

}  // namespace

void AddFrames(absl::string_view dump, const SourceReader& source, v1::RankStack* stack) {
  size_t sources = 0;
  stack->set_cut(IsCut(dump));
  const std::vector<PythonFrame> frames = MainThreadOf(dump);
  rpc::UserFrames program;
  std::for_each(frames.rbegin(), frames.rend(),
                [&](const PythonFrame& frame) { program.Add(frame); });
  for (const PythonFrame& frame : frames) {
    if (static_cast<size_t>(stack->frames_size()) == kMaxStackFrames) {
      stack->set_cut(true);
      return;
    }
    v1::StackFrame* call = stack->add_frames();
    call->set_file(Name(frame.file));
    call->set_line(static_cast<uint32_t>(frame.line));
    call->set_function(Name(frame.function));
    call->set_own(program.Has(frame.file));
    if (call->own() && sources++ < kMaxSourceLines) {
      call->set_source(source(frame.file, frame.line));
    }
  }
}

v1::NodeStacks NodeStacksOf(std::vector<v1::RankStack> ranks) {
  v1::NodeStacks answer;
  size_t bytes = 0;
  for (v1::RankStack& rank : ranks) {
    if (bytes + rank.ByteSizeLong() > kMaxNodeStackBytes) {
      rank.clear_frames();
      rank.clear_text();
      rank.set_no_python("left out: the node's answer would be too long; ask for this rank alone");
    }
    bytes += rank.ByteSizeLong();
    *answer.add_ranks() = std::move(rank);
  }
  return answer;
}

}  // namespace cadre::agent
