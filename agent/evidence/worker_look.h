// A look at workers while they run: what /proc, the progress pages and the interpreters tell.
// Nothing is stopped, and no rights to trace are needed. Stateless; any thread.
#ifndef CADRE_AGENT_EVIDENCE_WORKER_LOOK_H_
#define CADRE_AGENT_EVIDENCE_WORKER_LOOK_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/evidence/python_stack.h"
#include "base/progress_snapshot.h"
#include "base/time.h"
#include "proto/failure.pb.h"

namespace cadre::agent {

// Between the two looks that tell how busy a process is.
inline constexpr absl::Duration kBusyWindow = absl::Milliseconds(150);

// What the process was doing by what its interpreter wrote.
PythonPlace PlaceOfProcess(pid_t process, const std::string& dump);

struct LookedAtWorker {
  uint32_t local_rank = 0;
  uint32_t rank = 0;
  pid_t pid = 0;  // 0: it does not run
};

struct LookOptions {
  uint64_t generation = 0;
  // Of progress pages and stack files.
  std::string directory;
  // For the answers of all interpreters together, of which each worker's are asked for at the same
  // time, and for one of them.
  absl::Duration answers = kBusyWindow;
  absl::Duration answer = kBusyWindow;
  // Asks PyTorch's flight recorders, too, and what all of them together have for that.
  bool calls = false;
  absl::Duration records = absl::Milliseconds(400);
};

struct WorkerLook {
  // 0: the worker has no process.
  pid_t program() const { return processes.empty() ? 0 : processes.front(); }

  // The first is the program's own: the worker itself, or the interpreter that its shell's script
  // has started.
  std::vector<pid_t> processes;
  // What the interpreter of each of them said (python_dump.h).
  std::map<pid_t, absl::StatusOr<std::string>> python;
  std::optional<ProgressSnapshot> page;
  // When the page was read.
  MonoTime at;
  // Everything is filled in but `file` and `last_lines`.
  v1::RankEvidence evidence;
};

// One for each of `workers`, in their order. Takes kBusyWindow at least. When `cancelled` becomes
// true no more interpreters are asked.
std::vector<WorkerLook> LookAtWorkers(const std::vector<LookedAtWorker>& workers,
                                      const LookOptions& options,
                                      const std::atomic<bool>& cancelled);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_EVIDENCE_WORKER_LOOK_H_
