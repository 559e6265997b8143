// Ends generations: SIGTERM and SIGCONT, after the grace SIGKILL to everything, and AllGone once
// nothing is left. Supervisor's thread only.
#ifndef CADRE_AGENT_SUPERVISOR_STOP_H_
#define CADRE_AGENT_SUPERVISOR_STOP_H_

#include "absl/time/time.h"
#include "agent/supervisor/frames.h"
#include "agent/supervisor/state.h"
#include "base/time.h"

namespace cadre {

// A process that SIGKILL has not ended after this long is named and left behind.
inline constexpr absl::Duration kUnkillableAfter = absl::Seconds(60);
// How often /proc is searched for survivors where cgroups do not tell.
inline constexpr absl::Duration kScanInterval = absl::Milliseconds(10);
// How many generations are remembered as gone.
inline constexpr size_t kRememberedGenerations = 64;

// A stop for a generation that never had a worker is answered with AllGone at once.
void StopGeneration(State& state, const StopFrame& stop, MonoTime now);
void HoldGeneration(State& state, const HoldFrame& hold);
void SignalGeneration(State& state, const SignalFrame& signal);

// Moves every generation as far as it goes by itself: grace over, all workers out, nothing left.
void AdvanceGenerations(State& state, MonoTime now);
// When to call that again though nothing happened.
MonoTime NextDeadline(const State& state);

// The agent is gone: kills everything, waits kShutDownLimit at most until it is, and cleans up.
// False when something is left.
bool ShutDown(State& state);

}  // namespace cadre

#endif  // CADRE_AGENT_SUPERVISOR_STOP_H_
