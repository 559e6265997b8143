#include "agent/evidence/worker_probe.h"

#include <dirent.h>

#include <algorithm>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "agent/evidence/python_stack.h"
#include "agent/evidence/torch/flight_recorder.h"
#include "agent/supervisor/processes/kernel_files.h"
#include "agent/supervisor/processes/process_scan.h"
#include "base/clock.h"
#include "base/text.h"
#include "rpc/message_limits.h"

namespace cadre::agent {

PythonPlace PlaceOfProcess(pid_t process, const std::string& dump) {
  return PlaceOf(MainThreadOf(dump), [process](const std::string& file, int line) {
    return SourceLine(process, file, line);
  });
}

namespace {

// The position of the program or, if it waits for its data loader, of that process.
PythonPlace PlaceOfWorker(const WorkerProbe& probe) {
  const pid_t program = probe.program();
  const auto own = probe.python.find(program);
  if (own == probe.python.end() || !own->second.ok()) return {};
  PythonPlace place = PlaceOfProcess(program, *own->second);
  if (place.activity != v1::IN_DATA_LOADER) return place;
  for (const auto& [pid, dump] : probe.python) {
    if (pid == program || !dump.ok()) continue;
    const PythonPlace loads = PlaceOfProcess(pid, *dump);
    if (loads.activity != v1::IN_OWN_CODE || loads.where.empty()) continue;
    return {place.activity, loads.what, loads.where};
  }
  return place;
}

std::string StackFileOf(const ProbedWorker& worker, const ProbeOptions& options) {
  return StackFilePath(options.directory, options.generation, static_cast<int>(worker.rank));
}

void Ask(const ProbedWorker& worker, const ProbeOptions& options, MonoTime deadline,
         const std::atomic<bool>& cancelled, WorkerProbe* probe) {
  const std::string file = StackFileOf(worker, options);
  for (const pid_t pid : probe->processes) {
    probe->python.emplace(
        pid, cancelled
                 ? absl::StatusOr<std::string>(absl::CancelledError("the request was cancelled"))
                 : PythonStackOf(pid, file, std::min(deadline, MonoNow() + options.answer)));
  }
}

// A worker may be a shell script that starts the interpreter: then the program is the first of its
// processes that answers, since its data loaders are younger.
void PutProgramFirst(WorkerProbe* probe) {
  std::vector<pid_t>& processes = probe->processes;
  const auto own = probe->python.find(probe->program());
  if (own == probe->python.end() || !absl::IsUnimplemented(own->second.status())) return;
  const auto program = std::find_if(processes.begin(), processes.end(),
                                    [&](pid_t pid) { return probe->python.at(pid).ok(); });
  if (program != processes.end()) std::rotate(processes.begin(), program, program + 1);
}

// Each worker is asked on its own thread: their files differ, so they can answer in parallel, and
// one that does not answer delays no other. Its main process is asked first, before its data
// loaders.
void AskInterpreters(const std::vector<ProbedWorker>& workers, const ProbeOptions& options,
                     MonoTime deadline, const std::atomic<bool>& cancelled,
                     std::vector<WorkerProbe>* probes) {
  std::vector<std::thread> askers;
  for (size_t i = 0; i < workers.size(); ++i) {
    const auto ask = [&, i] { Ask(workers[i], options, deadline, cancelled, &(*probes)[i]); };
    try {
      askers.emplace_back(ask);
    } catch (const std::system_error&) {
      ask();  // no thread could be made; such a node's workers may well hang
    }
  }
  for (std::thread& asker : askers) asker.join();
  for (WorkerProbe& probe : *probes) PutProgramFirst(&probe);
}

// As a rule one of a worker's processes has the process groups.
void AskForCalls(const std::vector<ProbedWorker>& workers, const ProbeOptions& options,
                 std::vector<WorkerProbe>* probes) {
  std::vector<std::string> sockets;
  std::vector<WorkerProbe*> owners;
  for (size_t i = 0; i < workers.size(); ++i) {
    for (const pid_t pid : (*probes)[i].processes) {
      sockets.push_back(FlightRecorderSocket(StackFileOf(workers[i], options), pid));
      owners.push_back(&(*probes)[i]);
    }
  }
  const std::vector<std::string> answers = FlightRecordsOf(sockets, MonoNow() + options.records);
  for (size_t i = 0; i < answers.size(); ++i) {
    for (v1::ProcessGroupCalls& group : ParseFlightRecord(answers[i])) {
      if (owners[i]->evidence.calls_size() == rpc::kProcessGroupsMax) break;
      *owners[i]->evidence.add_calls() = std::move(group);
    }
  }
}

void CompleteProbe(const ProbedWorker& worker, const ProbeOptions& options, double cores,
                   WorkerProbe* probe) {
  v1::RankEvidence& evidence = probe->evidence;
  evidence.set_rank(static_cast<int32_t>(worker.rank));
  evidence.set_local_rank(static_cast<int32_t>(worker.local_rank));
  evidence.set_pid(worker.pid);
  evidence.set_bucket(-1);
  ProcessProbe process = ProbeProcesses(probe->processes);
  process.cores = cores;
  AddProcesses(process, &evidence);
  absl::StatusOr<ProgressSnapshot> page = ReadProgressPage(
      ProgressPagePath(options.directory, options.generation, static_cast<int>(worker.rank)));
  probe->at = MonoNow();
  if (page.ok()) {
    AddPage(*page, probe->at, &evidence);
    probe->page = *std::move(page);
  }
  AddPython(PlaceOfWorker(*probe), &evidence);
  evidence.set_summary(EvidenceSummary(evidence));
}

}  // namespace

std::vector<WorkerProbe> ProbeWorkers(const std::vector<ProbedWorker>& workers,
                                      const ProbeOptions& options,
                                      const std::atomic<bool>& cancelled) {
  std::set<pid_t> pids;
  for (const ProbedWorker& worker : workers) {
    if (worker.pid > 0) pids.insert(worker.pid);
  }
  const std::map<pid_t, std::vector<pid_t>> sessions = FindSessions(pids);
  std::vector<WorkerProbe> probes(workers.size());
  std::vector<int64_t> busy_ns(workers.size());
  const MonoTime first = MonoNow();
  for (size_t i = 0; i < workers.size(); ++i) {
    const auto session = sessions.find(workers[i].pid);
    if (session != sessions.end()) probes[i].processes = session->second;
    busy_ns[i] = BusyNs(probes[i].processes);
  }
  AskInterpreters(workers, options, first + options.answers, cancelled, &probes);
  if (options.calls) AskForCalls(workers, options, &probes);
  absl::SleepFor(first + kBusyWindow - MonoNow());
  for (size_t i = 0; i < workers.size(); ++i) {
    const double elapsed_ns = absl::ToDoubleNanoseconds(MonoNow() - first);
    const auto busy = static_cast<double>(BusyNs(probes[i].processes) - busy_ns[i]);
    CompleteProbe(workers[i], options, std::max(0.0, busy / elapsed_ns), &probes[i]);
  }
  return probes;
}

namespace {

// Entries of a directory that are numbers, at most `limit` of them, in ascending order.
std::vector<pid_t> NumbersIn(const std::string& path, size_t limit) {
  std::vector<pid_t> numbers;
  DIR* directory = opendir(path.c_str());
  if (directory == nullptr) return numbers;
  while (const dirent* entry = readdir(directory)) {
    pid_t number = 0;
    if (numbers.size() >= limit) break;
    if (absl::SimpleAtoi(entry->d_name, &number) && number > 0) numbers.push_back(number);
  }
  closedir(directory);
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

int64_t ThreadBusyNs(const std::string& thread) {
  const std::string text = supervisor::KernelFileText(absl::StrCat(thread, "/schedstat"));
  const std::vector<absl::string_view> words =
      absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  int64_t ran = 0, waited = 0;
  if (words.size() < 2 || !absl::SimpleAtoi(words[0], &ran) ||
      !absl::SimpleAtoi(words[1], &waited)) {
    return 0;
  }
  return ran + waited;
}

}  // namespace

std::map<pid_t, std::vector<pid_t>> FindSessions(const std::set<pid_t>& workers) {
  std::map<pid_t, std::vector<pid_t>> sessions;
  for (const pid_t worker : workers) {
    if (supervisor::InspectProcess(worker).has_value()) sessions[worker].push_back(worker);
  }
  for (const pid_t pid : NumbersIn("/proc", SIZE_MAX)) {
    const auto process = supervisor::InspectProcess(pid);
    if (!process.has_value() || workers.count(process->session) == 0) continue;
    std::vector<pid_t>& session = sessions[process->session];
    if (pid != process->session && session.size() < kMaxProbedProcesses) session.push_back(pid);
  }
  return sessions;
}

int64_t BusyNs(const std::vector<pid_t>& processes) {
  int64_t busy = 0;
  for (const pid_t pid : processes) {
    const std::string tasks = absl::StrCat("/proc/", pid, "/task");
    for (const pid_t thread : NumbersIn(tasks, kMaxProbedThreads)) {
      busy += ThreadBusyNs(absl::StrCat(tasks, "/", thread));
    }
  }
  return busy;
}

ProcessProbe ProbeProcesses(const std::vector<pid_t>& processes) {
  ProcessProbe probe;
  for (const pid_t pid : processes) {
    const auto process = supervisor::InspectProcess(pid);
    if (!process.has_value()) continue;
    const bool stopped = process->state == 'T' || process->state == 't';
    if (probe.state == '\0' || stopped) probe.state = process->state;
  }
  if (!processes.empty())
    probe.wchan = supervisor::KernelFunction(absl::StrCat("/proc/", processes.front()));
  return probe;
}

std::string DescribeThreads(pid_t process) {
  std::string text;
  const std::string tasks = absl::StrCat("/proc/", process, "/task");
  for (const pid_t thread : NumbersIn(tasks, kMaxProbedThreads)) {
    const std::string task = absl::StrCat(tasks, "/", thread);
    const auto state = supervisor::InspectProcess(thread);
    absl::StrAppend(&text, "-- thread ", thread, " state ",
                    state.has_value() ? std::string(1, state->state) : "?", " wchan ",
                    supervisor::KernelFunction(task), "\n",
                    supervisor::KernelFileText(absl::StrCat(task, "/stack")));
  }
  return text;
}

std::string DescribeProcesses(const std::vector<pid_t>& processes) {
  std::string text;
  for (const pid_t pid : processes) {
    absl::StrAppend(&text, "== process ", pid, "\n",
                    supervisor::KernelFileText(absl::StrCat("/proc/", pid, "/status")),
                    DescribeThreads(pid));
  }
  return text;
}

namespace {

// The number of collectives that PageText shows.
constexpr size_t kShownCollectives = 8;
// The limit of a line of a user's program.
constexpr size_t kMaxLineBytes = 120;

const char* StateName(const std::string& state) {
  if (state == "R") return "running";
  if (state == "S") return "sleeping";
  if (state == "D") return "in uninterruptible sleep";
  if (state == "T") return "stopped";
  if (state == "t") return "stopped by a debugger";
  if (state == "Z") return "dead";
  return state.empty() ? "gone" : "in another state";
}

v1::RankPhase PhaseOf(WorkerPhase phase) {
  switch (phase) {
    case WorkerPhase::kStarting:
      return v1::STARTING;
    case WorkerPhase::kForward:
      return v1::FORWARD;
    case WorkerPhase::kBackward:
      return v1::BACKWARD;
    case WorkerPhase::kWaiting:
      return v1::WAITING;
    case WorkerPhase::kBetween:
      return v1::BETWEEN;
    case WorkerPhase::kFailed:
      return v1::RUNTIME_FAILED;
  }
  return v1::RANK_PHASE_UNSPECIFIED;
}

WorkerPhase PhaseOf(v1::RankPhase phase) {
  switch (phase) {
    case v1::FORWARD:
      return WorkerPhase::kForward;
    case v1::BACKWARD:
      return WorkerPhase::kBackward;
    case v1::WAITING:
      return WorkerPhase::kWaiting;
    case v1::BETWEEN:
      return WorkerPhase::kBetween;
    case v1::RUNTIME_FAILED:
      return WorkerPhase::kFailed;
    default:
      return WorkerPhase::kStarting;
  }
}

const char* StateName(CollectiveRecord::State state) {
  switch (state) {
    case CollectiveRecord::State::kRunning:
      return "under way";
    case CollectiveRecord::State::kDone:
      return "done";
    case CollectiveRecord::State::kFailed:
      return "failed";
  }
  return "in an unknown state";
}

// For example "; Python: waits in all_reduce, train.py:12 in step"; empty without a stack.
std::string PythonText(const v1::RankEvidence& evidence) {
  if (evidence.python() == v1::PYTHON_ACTIVITY_UNSPECIFIED) return "";
  const char* const does = evidence.python() == v1::IN_COLLECTIVE    ? "waits in "
                           : evidence.python() == v1::IN_DATA_LOADER ? "loads data: "
                           : evidence.python() == v1::IMPORTING      ? "imports modules: "
                                                                     : "is at ";
  return absl::StrCat("; Python: ", does, evidence.python_what(),
                      evidence.python_where().empty() ? "" : ", ", evidence.python_where());
}

double Seconds(MonoTime since, MonoTime now) {
  return std::max(0.0, absl::ToDoubleSeconds(now - since));
}

}  // namespace

void AddProcesses(const ProcessProbe& probe, v1::RankEvidence* evidence) {
  evidence->set_state(probe.state == '\0' ? std::string() : std::string(1, probe.state));
  evidence->set_cpu(probe.cores);
  evidence->set_wchan(probe.wchan);
}

void AddPython(const PythonPlace& place, v1::RankEvidence* evidence) {
  evidence->set_python(place.activity);
  // Names come from the program and may be in any encoding.
  evidence->set_python_what(OneLine(ReplaceInvalidUtf8(place.what), kMaxLineBytes));
  evidence->set_python_where(OneLine(ReplaceInvalidUtf8(place.where), kMaxLineBytes));
}

void AddPage(const ProgressSnapshot& page, MonoTime now, v1::RankEvidence* evidence) {
  evidence->set_phase(PhaseOf(page.phase));
  evidence->set_phase_seconds(Seconds(page.since, now));
  evidence->set_step(static_cast<uint64_t>(std::max<int64_t>(page.step, 0)));
  evidence->set_bucket(page.bucket);
  if (page.collectives.empty()) return;
  const CollectiveRecord& last = page.collectives.back();
  evidence->set_collective(last.sequence);
  evidence->set_collective_running(last.state == CollectiveRecord::State::kRunning);
}

std::string EvidenceSummary(const v1::RankEvidence& evidence) {
  std::string text = absl::StrCat("pid ", evidence.pid(), ": ", StateName(evidence.state()));
  if (!evidence.state().empty()) {
    absl::StrAppend(&text, " (state ", evidence.state(), ")",
                    evidence.wchan().empty() ? "" : " in ", evidence.wchan());
    absl::StrAppendFormat(&text, ", %.1f cores", evidence.cpu());
  }
  absl::StrAppend(&text, PythonText(evidence));
  if (evidence.phase() == v1::RANK_PHASE_UNSPECIFIED) return text;
  absl::StrAppendFormat(&text, "; step %d, %s since %.1f s", evidence.step(),
                        PhaseText(PhaseOf(evidence.phase()), evidence.bucket()),
                        evidence.phase_seconds());
  if (evidence.collective() == 0) return text;
  absl::StrAppend(&text, ", last all-reduce ", evidence.collective(),
                  evidence.collective_running() ? " under way" : " over");
  return text;
}

std::string PageText(const ProgressSnapshot& page, MonoTime now) {
  std::string text = absl::StrCat(Describe(page, now), "\n");
  const size_t from =
      page.collectives.size() - std::min(page.collectives.size(), kShownCollectives);
  for (size_t i = from; i < page.collectives.size(); ++i) {
    const CollectiveRecord& one = page.collectives[i];
    absl::StrAppendFormat(
        &text, "  all-reduce %d: step %d, bucket %d, %d elements, begun %.1f s ago, %s\n",
        one.sequence, one.step, one.bucket, one.count, Seconds(one.begin, now),
        StateName(one.state));
  }
  return text;
}

std::string CallsText(const v1::RankEvidence& evidence) {
  std::string text;
  for (const v1::ProcessGroupCalls& group : evidence.calls()) {
    absl::StrAppend(&text, "== calls in process group ", group.description(),
                    ", by PyTorch's flight recorder; the last is ", group.last(), "\n");
    for (const v1::CollectiveCall& call : group.calls()) {
      absl::StrAppend(&text, "  ", call.name(), " ", call.number(), ": ", call.shape(),
                      call.pending() ? ", has not ended\n" : ", has ended\n");
    }
    for (const v1::CollectiveCall& message : group.messages()) {
      absl::StrAppend(&text, "  ", message.name(), " from rank ",
                      message.from() < 0 ? "any" : absl::StrCat(message.from()), " to rank ",
                      message.to(), ", has not ended\n");
    }
  }
  return text;
}

}  // namespace cadre::agent
