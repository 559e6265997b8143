// Answers who asks where the workers of this node are, on a thread of its own, one after another.
// Used by one thread, the daemon's loop.
#ifndef CADRE_AGENT_EVIDENCE_STACK_COLLECTOR_H_
#define CADRE_AGENT_EVIDENCE_STACK_COLLECTOR_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "agent/core/event.h"
#include "agent/evidence/worker_look.h"
#include "proto/stacks.pb.h"

namespace cadre::agent {

// How long all interpreters of the node together, and one of them, may take to answer; and how long
// the native stacks may take, for which gdb reads the symbols of all that PyTorch loads.
inline constexpr absl::Duration kStackAnswersTime = absl::Seconds(1);
inline constexpr absl::Duration kStackAnswerTime = absl::Milliseconds(300);
inline constexpr absl::Duration kNativeStacksTime = absl::Seconds(10);
// A question that comes while so many wait is refused, with that reason.
inline constexpr size_t kMaxStackQuestions = 8;

struct StackRequest {
  uint64_t generation = 0;
  uint64_t call = 0;
  v1::StackQuestion question;
  // The directory of progress pages and stack files.
  std::string directory;
  std::vector<LookedAtWorker> workers;
};

class StackCollector {
 public:
  // `report` gets StacksFound for each request, on any thread.
  explicit StackCollector(std::function<void(AgentEvent)> report) : report_(std::move(report)) {}
  // What is under way ends within kStackAnswerTime and kBusyWindow, unanswered.
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
  std::thread thread_;  // from the first question on
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_EVIDENCE_STACK_COLLECTOR_H_
