// Processes of the program beyond the node's workers, which stand by for those that a failure ends
// (agent/supervisor/standby.h). The core and the server know nothing of them. Pure; one thread.
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

// After the workers have begun: those that start with them have the processors first.
inline constexpr absl::Duration kStandbyDelay = absl::Seconds(2);

struct Standby {
  std::string progress_file;
  std::string directory;  // of its log files
};

// How many a node of so many workers keeps.
size_t StandbysWanted(const v1::RestartPolicy& restart, const WorkerOptions& options,
                      absl::Duration adopt_timeout, size_t workers);

class Standbys {
 public:
  // For the generation that begins now `wanted` are to be there, started like `frame`; none where
  // the generation's workers are started differently. `first_rank` numbers their directories, so
  // that nodes which share the log directory have files of their own.
  void Begin(std::optional<supervisor::StartFrame> frame, size_t wanted, uint32_t first_rank);
  // The generation is over: none is started for it any more.
  void End() { pending_ = false; }

  // The frames of those to start now, each with a group of `take_group`. To be called from time to
  // time once the generation's workers have shown that they use the worker runtime.
  std::vector<supervisor::StartFrame> Start(MonoTime now, const std::string& progress_directory,
                                            const std::function<uint64_t()>& take_group);

  // The one that was this group stands by no more: it is a worker, or has ended. nullopt: it was
  // none of them. In its place another one is started with the next generation.
  std::optional<Standby> Take(uint64_t group);
  // All have ended.
  void Clear() { standbys_.clear(); }

 private:
  std::map<uint64_t, Standby> standbys_;  // by group
  std::optional<supervisor::StartFrame> frame_;
  size_t wanted_ = 0;
  uint32_t first_rank_ = 0;
  bool pending_ = false;  // none was started in this generation so far
  MonoTime start_at_ = MonoTime::Never();
};

// Says that one has ended, and why that is of interest.
std::string StandbyEnded(const Standby& standby, const supervisor::ExitedFrame& exited,
                         bool has_logs);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_STANDBYS_H_
