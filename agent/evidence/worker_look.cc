#include "agent/evidence/worker_look.h"

#include <algorithm>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "agent/evidence/process_look.h"
#include "agent/evidence/python_dump.h"
#include "agent/evidence/rank_evidence.h"
#include "agent/evidence/source_line.h"
#include "agent/evidence/torch/flight_recorder.h"
#include "base/clock.h"
#include "rpc/limits.h"

namespace cadre::agent {

PythonPlace PlaceOfProcess(pid_t process, const std::string& dump) {
  return PlaceOf(MainThreadOf(dump), [process](const std::string& file, int line) {
    return SourceLine(process, file, line);
  });
}

namespace {

// Where the program itself is, or where the process that it loads its data with is.
PythonPlace PlaceOfWorker(const WorkerLook& look) {
  const pid_t program = look.program();
  const auto own = look.python.find(program);
  if (own == look.python.end() || !own->second.ok()) return {};
  PythonPlace place = PlaceOfProcess(program, *own->second);
  if (place.activity != v1::IN_DATA_LOADER) return place;
  for (const auto& [pid, dump] : look.python) {
    if (pid == program || !dump.ok()) continue;
    const PythonPlace loads = PlaceOfProcess(pid, *dump);
    if (loads.activity != v1::IN_OWN_CODE || loads.where.empty()) continue;
    return {place.activity, loads.what, loads.where};
  }
  return place;
}

std::string StackFileOf(const LookedAtWorker& worker, const LookOptions& options) {
  return StackFilePath(options.directory, options.generation, static_cast<int>(worker.rank));
}

void Ask(const LookedAtWorker& worker, const LookOptions& options, MonoTime deadline,
         const std::atomic<bool>& cancelled, WorkerLook* look) {
  const std::string file = StackFileOf(worker, options);
  for (const pid_t pid : look->processes) {
    look->python.emplace(
        pid, cancelled ? absl::StatusOr<std::string>(absl::CancelledError("nobody asks any more"))
                       : PythonStackOf(pid, file, std::min(deadline, MonoNow() + options.answer)));
  }
}

// A worker may be a shell's script that starts the interpreter: then the program is the first of
// its processes that answers, since those that load its data are younger.
void PutProgramFirst(WorkerLook* look) {
  std::vector<pid_t>& processes = look->processes;
  const auto own = look->python.find(look->program());
  if (own == look->python.end() || !absl::IsUnimplemented(own->second.status())) return;
  const auto program = std::find_if(processes.begin(), processes.end(),
                                    [&](pid_t pid) { return look->python.at(pid).ok(); });
  if (program != processes.end()) std::rotate(processes.begin(), program, program + 1);
}

// Each worker on a thread of its own: their files differ, so that they answer at the same time, and
// one that does not answer takes nobody's time but its own. Its own process is the first to be
// asked, before the many that may load its data.
void AskAll(const std::vector<LookedAtWorker>& workers, const LookOptions& options,
            MonoTime deadline, const std::atomic<bool>& cancelled, std::vector<WorkerLook>* looks) {
  std::vector<std::thread> askers;
  for (size_t i = 0; i < workers.size(); ++i) {
    const auto ask = [&, i] { Ask(workers[i], options, deadline, cancelled, &(*looks)[i]); };
    try {
      askers.emplace_back(ask);
    } catch (const std::system_error&) {
      ask();  // a node that has no room for a thread is one whose workers may well hang
    }
  }
  for (std::thread& asker : askers) asker.join();
  for (WorkerLook& look : *looks) PutProgramFirst(&look);
}

// Of a worker's processes one has the process groups, as a rule.
void AskForCalls(const std::vector<LookedAtWorker>& workers, const LookOptions& options,
                 std::vector<WorkerLook>* looks) {
  std::vector<std::string> sockets;
  std::vector<WorkerLook*> owners;
  for (size_t i = 0; i < workers.size(); ++i) {
    for (const pid_t pid : (*looks)[i].processes) {
      sockets.push_back(FlightRecorderSocket(StackFileOf(workers[i], options), pid));
      owners.push_back(&(*looks)[i]);
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

void Describe(const LookedAtWorker& worker, const LookOptions& options, double cores,
              WorkerLook* look) {
  v1::RankEvidence& evidence = look->evidence;
  evidence.set_rank(static_cast<int32_t>(worker.rank));
  evidence.set_local_rank(static_cast<int32_t>(worker.local_rank));
  evidence.set_pid(worker.pid);
  evidence.set_bucket(-1);
  ProcessLook process = LookAt(look->processes);
  process.cores = cores;
  AddProcesses(process, &evidence);
  absl::StatusOr<ProgressSnapshot> page = ReadProgressPage(
      ProgressPagePath(options.directory, options.generation, static_cast<int>(worker.rank)));
  look->at = MonoNow();
  if (page.ok()) {
    AddPage(*page, look->at, &evidence);
    look->page = *std::move(page);
  }
  AddPython(PlaceOfWorker(*look), &evidence);
  evidence.set_summary(EvidenceSummary(evidence));
}

}  // namespace

std::vector<WorkerLook> LookAtWorkers(const std::vector<LookedAtWorker>& workers,
                                      const LookOptions& options,
                                      const std::atomic<bool>& cancelled) {
  std::set<pid_t> pids;
  for (const LookedAtWorker& worker : workers) {
    if (worker.pid > 0) pids.insert(worker.pid);
  }
  const std::map<pid_t, std::vector<pid_t>> sessions = FindSessions(pids);
  std::vector<WorkerLook> looks(workers.size());
  std::vector<int64_t> busy_ns(workers.size());
  const MonoTime first = MonoNow();
  for (size_t i = 0; i < workers.size(); ++i) {
    const auto session = sessions.find(workers[i].pid);
    if (session != sessions.end()) looks[i].processes = session->second;
    busy_ns[i] = BusyNs(looks[i].processes);
  }
  AskAll(workers, options, first + options.answers, cancelled, &looks);
  if (options.calls) AskForCalls(workers, options, &looks);
  absl::SleepFor(first + kBusyWindow - MonoNow());
  for (size_t i = 0; i < workers.size(); ++i) {
    const double elapsed_ns = absl::ToDoubleNanoseconds(MonoNow() - first);
    const auto busy = static_cast<double>(BusyNs(looks[i].processes) - busy_ns[i]);
    Describe(workers[i], options, std::max(0.0, busy / elapsed_ns), &looks[i]);
  }
  return looks;
}

}  // namespace cadre::agent
