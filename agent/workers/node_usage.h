// How busy this node is: its processors and memory as /proc tells, and the GPUs that its workers
// may use as the driver does.
#ifndef CADRE_AGENT_WORKERS_NODE_USAGE_H_
#define CADRE_AGENT_WORKERS_NODE_USAGE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/threads/file_thread.h"
#include "base/time.h"
#include "proto/job.pb.h"

namespace cadre::agent {

inline constexpr absl::Duration kUsageInterval = absl::Seconds(5);

// Of all processors since the machine started, in ticks.
struct CpuTimes {
  uint64_t busy = 0;
  uint64_t all = 0;
};

// Of /proc/stat and /proc/meminfo. nullopt: the text is none of theirs. Pure.
std::optional<CpuTimes> ParseCpuTimes(absl::string_view stat);
bool ParseMemory(absl::string_view meminfo, v1::NodeUsage* usage);

// Measures every few seconds on a thread of its own: a driver that does not answer keeps nobody
// waiting. One thread.
class UsageWatch {
 public:
  // `proc`: where /proc is, but for a test. `interval`: between two measurements.
  explicit UsageWatch(std::string proc = "/proc", absl::Duration interval = kUsageInterval);
  ~UsageWatch();

  // What was measured since the last call, if anything was.
  std::optional<v1::NodeUsage> Poll(MonoTime now);

 private:
  struct State;

  const absl::Duration interval_;
  const std::shared_ptr<State> state_;  // the thread's while it measures
  MonoTime due_;
  FileThread thread_{{}};
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_NODE_USAGE_H_
