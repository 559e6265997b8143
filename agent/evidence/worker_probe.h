// Probes running workers: what /proc, the progress pages and the interpreters show of them, and the
// text and the message (RankEvidence) that are made from it. A probe stops no process, waits for
// none, and needs no ptrace rights. Stateless; any thread.
#ifndef CADRE_AGENT_EVIDENCE_WORKER_PROBE_H_
#define CADRE_AGENT_EVIDENCE_WORKER_PROBE_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/evidence/python_stack.h"
#include "base/progress_snapshot.h"
#include "base/time.h"
#include "proto/failure.pb.h"

namespace cadre::agent {

// --- a probe of workers ---

// The time between the two readings that show how busy a process is.
inline constexpr absl::Duration kBusyWindow = absl::Milliseconds(150);

struct ProbedWorker {
  uint32_t local_rank = 0;
  uint32_t rank = 0;
  pid_t pid = 0;  // 0: not running
};

struct ProbeOptions {
  uint64_t generation = 0;
  // The directory of progress pages and stack files.
  std::string directory;
  // Time limits for the answers of all interpreters together (the workers are asked in parallel),
  // and for one of them.
  absl::Duration answers = kBusyWindow;
  absl::Duration answer = kBusyWindow;
  // Whether PyTorch's flight recorders are asked too, and the time limit for all of them together.
  bool calls = false;
  absl::Duration records = absl::Milliseconds(400);
};

struct WorkerProbe {
  // Returns 0 if the worker has no process.
  pid_t program() const { return processes.empty() ? 0 : processes.front(); }

  // The first is the program's own: the worker itself, or the interpreter that its shell script has
  // started.
  std::vector<pid_t> processes;
  // The answer of each process's interpreter (python_stack.h).
  std::map<pid_t, absl::StatusOr<std::string>> python;
  std::optional<ProgressSnapshot> page;
  // When the page was read.
  MonoTime at;
  // Complete except for `file` and `last_lines`.
  v1::RankEvidence evidence;
};

// Returns one for each of `workers`, in their order. Takes kBusyWindow at least. When `cancelled`
// becomes true no more interpreters are asked.
std::vector<WorkerProbe> ProbeWorkers(const std::vector<ProbedWorker>& workers,
                                      const ProbeOptions& options,
                                      const std::atomic<bool>& cancelled);

// Returns what the process was doing, according to its interpreter's dump.
PythonPlace PlaceOfProcess(pid_t process, const std::string& dump);

// --- what /proc shows about a worker's processes ---

// Limits on the processes of one worker, and the threads of one process, that are examined.
inline constexpr size_t kMaxProbedProcesses = 16;
inline constexpr size_t kMaxProbedThreads = 64;

struct ProcessProbe {
  // The state letter of /proc/<pid>/stat: T or t if any process of the worker is stopped, else the
  // worker's own; '\0' if there is none.
  char state = '\0';
  // Cores that its processes used or waited for between two probes.
  double cores = 0;
  // The kernel function in which the leader's main thread sleeps; empty if the kernel hides it.
  std::string wchan;
};

// The processes in the sessions that these workers lead, by worker, the worker itself first.
std::map<pid_t, std::vector<pid_t>> FindSessions(const std::set<pid_t>& workers);

// The total time in nanoseconds in which threads of these processes ran or were ready to run.
// Processes that are gone count as 0.
int64_t BusyNs(const std::vector<pid_t>& processes);

// Leaves `cores` at 0: the caller computes it from two probes.
ProcessProbe ProbeProcesses(const std::vector<pid_t>& processes);

// A line for each thread of a process: state, wchan, and its kernel stack (for root).
std::string DescribeThreads(pid_t process);

// The useful details of each process: /proc/<pid>/status, and state, wchan and kernel stack (for
// root) of its threads.
std::string DescribeProcesses(const std::vector<pid_t>& processes);

// --- the evidence about one worker that hangs or has died; pure ---

void AddProcesses(const ProcessProbe& probe, v1::RankEvidence* evidence);
void AddPython(const PythonPlace& place, v1::RankEvidence* evidence);
void AddPage(const ProgressSnapshot& page, MonoTime now, v1::RankEvidence* evidence);

// A description of what was added: "pid 17: stopped (state T), 0.0 cores; step 5, waits for bucket
// 2 since 2.1 s".
std::string EvidenceSummary(const v1::RankEvidence& evidence);

// The page's last collectives, a line each.
std::string PageText(const ProgressSnapshot& page, MonoTime now);

// The calls that the rank made in PyTorch's process groups, a line each. Empty: none are known.
std::string CallsText(const v1::RankEvidence& evidence);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_EVIDENCE_WORKER_PROBE_H_
