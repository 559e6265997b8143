// Standby processes: extra processes of the program that replace workers ended by a failure
// (agent/supervisor/start.h). The core and the server know nothing of them. Pure; one thread.
#ifndef CADRE_AGENT_WORKERS_STANDBYS_H_
#define CADRE_AGENT_WORKERS_STANDBYS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "agent/supervisor/frames.h"
#include "agent/workers/worker_options.h"
#include "base/time.h"
#include "proto/spec.pb.h"

namespace cadre::agent {

// Standbys are started this long after the workers, so as not to compete with them for CPUs.
inline constexpr absl::Duration kStandbyDelay = absl::Seconds(2);

struct Standby {
  std::string progress_file;
  std::string directory;  // of its log files
};

// The number of standbys for a node with this many workers.
size_t StandbysWanted(const v1::RestartPolicy& restart, const WorkerOptions& options,
                      absl::Duration adopt_timeout, size_t workers);

class Standbys {
 public:
  // Sets the target for the new generation: `wanted` standbys, started like `frame`; none if the
  // generation's workers are started differently. `first_rank` numbers their directories, so that
  // nodes which share the log directory do not collide.
  void Begin(std::optional<supervisor::StartFrame> frame, size_t wanted, uint32_t first_rank);
  // The generation is over: no standby is started for it any more.
  void End() { pending_ = false; }

  // The frames of the standbys to start now, each with a group of `take_group`. Called periodically
  // once the generation's workers have shown that they use the worker runtime.
  std::vector<supervisor::StartFrame> Start(MonoTime now, const std::string& progress_directory,
                                            const std::function<uint64_t()>& take_group);

  // Removes the standby with this group, because it has become a worker or has ended. nullopt: the
  // group is no standby's. It is replaced in the next generation.
  std::optional<Standby> Remove(uint64_t group);
  // All of them have ended.
  void Clear() { standbys_.clear(); }

 private:
  std::map<uint64_t, Standby> standbys_;  // by group
  std::optional<supervisor::StartFrame> frame_;
  size_t wanted_ = 0;
  uint32_t first_rank_ = 0;
  bool pending_ = false;  // none has been started in this generation yet
  MonoTime start_at_ = MonoTime::Never();
};

// A message that a standby has ended, and why that matters.
std::string StandbyEnded(const Standby& standby, const supervisor::ExitedFrame& exited,
                         bool has_logs);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_STANDBYS_H_
