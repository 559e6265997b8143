// A job of simulated agents whose workers all run.
#ifndef CADRE_BENCH_SCALE_RUNNING_JOB_H_
#define CADRE_BENCH_SCALE_RUNNING_JOB_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/time.h"
#include "bench/scale/fleet.h"
#include "bench/scale/marks.h"

namespace cadre {

// How long anything may take before it counts as "never".
inline constexpr absl::Duration kLoadPatience = absl::Seconds(60);
inline constexpr char kLoadJob[] = "scale";

// Names how many were in time, and a stream that broke.
absl::Status LateError(absl::string_view what, const Marks& marks, const Fleet& fleet);

class RunningJob {
 public:
  // Returns when all workers run. DEADLINE_EXCEEDED: they did not in time.
  static absl::StatusOr<std::unique_ptr<RunningJob>> Start(const ServerAddress& server,
                                                           size_t agents, uint32_t slots);

  // Hears everything from now on, until the next one or null; a call may still be under way then.
  void Observe(Fleet::Observer observer);

  Fleet& fleet() { return *fleet_; }
  uint32_t world() const { return world_; }
  // From the first connection to the last agent's.
  double joined_ms() const { return welcomed_.LastMillisSince(connected_); }
  double assigned_ms() const { return assigned_.LastMillisSince(connected_); }
  double running_ms() const { return running_.LastMillisSince(connected_); }

 private:
  RunningJob(size_t agents, uint32_t slots)
      : world_(static_cast<uint32_t>(agents) * slots),
        welcomed_(agents),
        assigned_(agents),
        running_(agents) {}
  void Hear(size_t agent, const v1::ServerMessage& message);

  const uint32_t world_;
  Marks welcomed_, assigned_, running_;
  MonoTime connected_;
  absl::Mutex mutex_;
  std::shared_ptr<const Fleet::Observer> observer_ ABSL_GUARDED_BY(mutex_);
  // Last: it uses all above.
  std::unique_ptr<Fleet> fleet_;
};

}  // namespace cadre

#endif  // CADRE_BENCH_SCALE_RUNNING_JOB_H_
