// Collects evidence about this node's workers on threads of its own, for the daemon's loop:
//
//   EvidenceCollector   probes workers that hang: first /proc and the progress pages, which takes a
//                       fifth of a second, is reported and is written to a file for each rank; then
//                       native stacks, which are appended to the files
//   StackCollector      answers users' requests for the stacks of workers, one at a time
//
// Each is used by one thread. That a worker hangs, by its deadlines, is decided before, in
// agent/core/hang_watch.cc.
#ifndef CADRE_AGENT_EVIDENCE_EVIDENCE_COLLECTOR_H_
#define CADRE_AGENT_EVIDENCE_EVIDENCE_COLLECTOR_H_

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "agent/core/agent_core.h"
#include "agent/evidence/native_stacks.h"
#include "agent/evidence/python_stack.h"
#include "agent/evidence/worker_probe.h"
#include "base/progress_snapshot.h"
#include "base/threads/file_thread.h"
#include "base/time.h"
#include "proto/stacks.pb.h"

namespace cadre::agent {

// --- workers that hang or have died ---

// The time limit for the native stacks of all workers of the node together, and for those of
// processes whose Python stack is known already. gdb would read the symbols of all libraries that
// PyTorch loads for 8 s and more, and no generation starts until it is done.
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
    std::string file;  // empty: no file is written
    // Its output files; the first that is not empty is quoted.
    std::vector<std::string> logs;
  };
  uint64_t generation = 0;
  std::string page_directory;
  std::vector<Worker> workers;
  // As in CollectEvidence.
  bool briefly = false;
};

class EvidenceCollector {
 public:
  // `report` gets EvidenceFound, then EvidenceDone, on another thread. Tests replace `native`.
  explicit EvidenceCollector(std::function<void(AgentEvent)> report,
                             NativeStacksOf native = NativeStacks)
      : report_(std::move(report)), native_(std::move(native)) {}
  // Cancels; a probe under way ends within milliseconds.
  ~EvidenceCollector();
  EvidenceCollector(const EvidenceCollector&) = delete;
  EvidenceCollector& operator=(const EvidenceCollector&) = delete;

  // Cancels the probe under way, if any, and starts another.
  void Start(EvidenceRequest request);
  // Ends the collection of native stacks, because the workers are to be stopped. EvidenceDone still
  // follows.
  void Cancel() { cancelled_ = true; }

 private:
  void Run(const EvidenceRequest& request);

  const std::function<void(AgentEvent)> report_;
  const NativeStacksOf native_;
  std::atomic<bool> cancelled_{false};
  FileThread files_{{}};
  std::thread thread_;
};

// The last position of a worker that has ended, from its progress page and from what its
// interpreter wrote at the end: if a fatal signal ended it (SIGSEGV and the like), or sys.exit().
// nullopt without both.
std::optional<v1::RankEvidence> LastPlace(const std::string& page_directory, const PageOwner& owner,
                                          const ProbedWorker& worker, const v1::WorkerExit& exit);

// --- requests for stacks ---

// The time limits for all interpreters of the node together, for one of them, and for the native
// stacks, for which gdb reads the symbols of all libraries that PyTorch loads.
inline constexpr absl::Duration kStackAnswersTime = absl::Seconds(1);
inline constexpr absl::Duration kStackAnswerTime = absl::Milliseconds(300);
inline constexpr absl::Duration kNativeStacksTime = absl::Seconds(10);
// A request that comes while this many are pending is refused, with that reason.
inline constexpr size_t kMaxStackQuestions = 8;

struct StackRequest {
  uint64_t generation = 0;
  uint64_t call = 0;
  v1::StackQuestion question;
  // The directory of progress pages and stack files.
  std::string directory;
  std::vector<ProbedWorker> workers;
};

class StackCollector {
 public:
  // `report` gets StacksFound for each request, on any thread.
  explicit StackCollector(std::function<void(AgentEvent)> report) : report_(std::move(report)) {}
  // A request under way ends within kStackAnswerTime and kBusyWindow, unanswered.
  ~StackCollector();
  StackCollector(const StackCollector&) = delete;
  StackCollector& operator=(const StackCollector&) = delete;

  void Ask(StackRequest request);

 private:
  void Run();
  v1::NodeStacks Collect(const StackRequest& request) const;
  void Answer(const StackRequest& request, v1::NodeStacks stacks) const;

  const std::function<void(AgentEvent)> report_;
  std::atomic<bool> cancelled_{false};
  absl::Mutex mutex_;
  std::deque<StackRequest> waiting_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // started by the first request
};

// --- the stack of one worker in the answer to such a request; pure ---

// Limits of one stack: the calls (the interpreter prints 100), the calls whose source line is read,
// and the bytes of a name.
inline constexpr size_t kMaxStackFrames = 100;
inline constexpr size_t kMaxSourceLines = 16;
inline constexpr size_t kMaxFrameNameBytes = 256;
// An answer is one message: these limit the bytes of all workers of a node, and of the text of one.
inline constexpr size_t kMaxNodeStackBytes = 512 << 10;
inline constexpr size_t kMaxRankTextBytes = 256 << 10;

// Adds the main thread's frames from the interpreter's dump, most recent call first.
void AddFrames(absl::string_view dump, const SourceReader& source, v1::RankStack* stack);

// The answer has the ranks in this order. As many as fit have their frames and text; for the others
// a note says that these were left out.
v1::NodeStacks NodeStacksOf(std::vector<v1::RankStack> ranks);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_EVIDENCE_EVIDENCE_COLLECTOR_H_
