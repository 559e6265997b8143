// Looks at workers that hang, on a thread of its own: first at what /proc and the progress pages
// tell, which takes a fifth of a second, is reported and goes into a file for each rank; then at
// native stacks, which follow in the files. Used by one thread, the daemon's loop.
#ifndef CADRE_AGENT_EVIDENCE_EVIDENCE_COLLECTOR_H_
#define CADRE_AGENT_EVIDENCE_EVIDENCE_COLLECTOR_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "agent/core/agent_core.h"
#include "agent/evidence/native_stacks.h"
#include "agent/evidence/worker_look.h"
#include "base/progress_snapshot.h"
#include "base/threads/file_thread.h"
#include "base/time.h"

namespace cadre::agent {

// For the native stacks of all workers of the node together, and for those of processes whose
// interpreter has said where they are: gdb would read the symbols of all that PyTorch loads, which
// takes it 8 s and more, and until it is done nothing is started again.
inline constexpr absl::Duration kStacksTime = absl::Seconds(4);
inline constexpr absl::Duration kStacksTimeBesidePython = absl::Seconds(1);

using NativeStacksOf = std::function<std::string(pid_t process, MonoTime deadline,
                                                 const std::atomic<bool>& cancelled)>;

struct EvidenceRequest {
  struct Worker {
    uint32_t local_rank = 0;
    uint32_t rank = 0;
    pid_t pid = 0;
    bool overdue = false;
    std::string file;  // empty: none is written
    // Its output so far; the first that is not empty is quoted.
    std::vector<std::string> logs;
  };
  uint64_t generation = 0;
  std::string page_directory;
  std::vector<Worker> workers;
  // As in CollectEvidence.
  bool briefly = false;
};

// Where a worker was when it ended, from its page and from what its interpreter wrote then: where
// the signal that ended it is one of those that say that a program is broken, or it ended itself by
// sys.exit(). nullopt without both.
std::optional<v1::RankEvidence> LastPlace(const std::string& page_directory, const PageOwner& owner,
                                          const LookedAtWorker& worker, const v1::WorkerExit& exit);

class EvidenceCollector {
 public:
  // `report` gets EvidenceFound, then EvidenceDone, on another thread. `native` is a test's own.
  explicit EvidenceCollector(std::function<void(AgentEvent)> report,
                             NativeStacksOf native = NativeStacks)
      : report_(std::move(report)), native_(std::move(native)) {}
  // Cancels; what it is doing ends within milliseconds.
  ~EvidenceCollector();
  EvidenceCollector(const EvidenceCollector&) = delete;
  EvidenceCollector& operator=(const EvidenceCollector&) = delete;

  // Cancels what is under way, then begins.
  void Start(EvidenceRequest request);
  // The workers are wanted: no more stacks. EvidenceDone still comes.
  void Cancel() { cancelled_ = true; }

 private:
  void Run(const EvidenceRequest& request);

  const std::function<void(AgentEvent)> report_;
  const NativeStacksOf native_;
  std::atomic<bool> cancelled_{false};
  FileThread files_{{}};
  std::thread thread_;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_EVIDENCE_EVIDENCE_COLLECTOR_H_
