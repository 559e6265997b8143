// Ends groups: SIGTERM and SIGCONT, after the grace SIGKILL to everything, and AllGone once nothing
// is left, however long that takes. Signals are for the group's process alone, but for a shell,
// which passes none on, for all of its process group. The grace ends with the process, or, where
// that died of SIGTERM itself, with its process group, which gets SIGTERM then. Supervisor's thread
// only.
//
// What a group's process has started is found by its cgroup; where there are none, or it was moved
// out of it, by its session and by the marker in its environment. What has left all three can be
// any group's: it is killed with the last group there is that does not stand by.
#ifndef CADRE_AGENT_SUPERVISOR_STOP_H_
#define CADRE_AGENT_SUPERVISOR_STOP_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "agent/supervisor/frames.h"
#include "agent/supervisor/state.h"
#include "base/time.h"

namespace cadre::supervisor {

// Processes that SIGKILL has not ended after this long are reported (RemainsFrame): those that wait
// in the kernel. On a machine that is overloaded, or has much memory to take back, others need
// longer.
inline constexpr absl::Duration kRemainsAfter = absl::Seconds(5);
inline constexpr absl::Duration kRunningRemainsAfter = absl::Minutes(1);
// How often /proc is searched for survivors where cgroups do not tell, and once they are reported.
inline constexpr absl::Duration kScanInterval = absl::Milliseconds(10);
inline constexpr absl::Duration kScanForRemains = absl::Seconds(1);

void StopGroup(State& state, const StopFrame& stop, MonoTime now);
void HoldGroup(State& state, const HoldFrame& hold);
void SignalGroup(State& state, const SignalFrame& signal);

// Moves every group as far as it goes by itself: grace over, process out, nothing left.
void AdvanceGroups(State& state, MonoTime now);
// Has Source::kHold come when a hold is over, also if the machine slept until after that: other
// waits go on where they were when it wakes up.
void SetHoldTimer(State& state);
// When to call AdvanceGroups again though nothing happened.
MonoTime NextDeadline(const State& state);

// The agent is gone: kills everything, waits kShutDownLimit at most until it is, and cleans up. For
// what only waits for a processor it waits kRunningRemainsAfter. DEADLINE_EXCEEDED: names what is
// left.
absl::Status ShutDown(State& state);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_STOP_H_
