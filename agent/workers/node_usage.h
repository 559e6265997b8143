// Measures the load of this node: its CPUs and memory from /proc, and the GPUs that its workers may
// use from the driver.
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

// The time of all CPUs since boot, in ticks.
struct CpuTimes {
  uint64_t busy = 0;
  uint64_t all = 0;
};

// Parse the text of /proc/stat and /proc/meminfo. nullopt or false: the text has another format.
// Pure.
std::optional<CpuTimes> ParseCpuTimes(absl::string_view stat);
bool ParseMemory(absl::string_view meminfo, v1::NodeUsage* usage);

// Measures at an interval on its own thread, so that a driver that does not answer blocks only that
// thread. For use by one thread.
class UsageWatch {
 public:
  // `proc` differs in tests only. `interval` is the time between two measurements.
  explicit UsageWatch(std::string proc = "/proc", absl::Duration interval = kUsageInterval);
  ~UsageWatch();

  // The measurement made since the last call, if any.
  std::optional<v1::NodeUsage> Poll(MonoTime now);

 private:
  struct State;

  const absl::Duration interval_;
  const std::shared_ptr<State> state_;  // used by thread_ while it measures
  MonoTime due_;
  FileThread thread_{{}};
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_NODE_USAGE_H_
