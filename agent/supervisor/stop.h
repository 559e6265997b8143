// Stops groups: SIGTERM and SIGCONT, after the grace SIGKILL to the whole group, and AllGone once
// nothing is left, however long that takes. Signals are sent to the group's process alone; if that
// is a shell, which passes none on, to its whole process group. The grace ends when the process
// exits. But if the process died of that SIGTERM, its process group then gets SIGTERM and the rest
// of the grace. Supervisor's thread only.
//
// Descendants of a group's process are found by its cgroup. Without cgroups, or if one was moved
// out of the cgroup, they are found by their session and by the marker in their environment. A
// process that matches none of the three may belong to any group: it is killed with the last group
// that is not a standby.
#ifndef CADRE_AGENT_SUPERVISOR_STOP_H_
#define CADRE_AGENT_SUPERVISOR_STOP_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "agent/supervisor/frames.h"
#include "agent/supervisor/groups.h"
#include "base/time.h"

namespace cadre::supervisor {

// Processes that SIGKILL has not ended after this long are reported (RemainsFrame).
// kUnkillableAfter is for those blocked in the kernel. Others get kRunnableUnkillableAfter, since
// they need longer on a machine that is overloaded, or has much memory to free.
inline constexpr absl::Duration kUnkillableAfter = absl::Seconds(5);
inline constexpr absl::Duration kRunnableUnkillableAfter = absl::Minutes(1);
// How often /proc is searched for survivors if cgroups cannot show them, and after a report.
inline constexpr absl::Duration kScanInterval = absl::Milliseconds(10);
inline constexpr absl::Duration kUnkillableScanInterval = absl::Seconds(1);

void StopGroup(State& state, const StopFrame& stop, MonoTime now);
void HoldGroup(State& state, const HoldFrame& hold);
void SignalGroup(State& state, const SignalFrame& signal);

// Advances every group: ends a grace that is over, handles exits, reports groups that are gone.
void AdvanceGroups(State& state, MonoTime now);
// Makes Source::kHold fire when a hold is over, even if the machine slept until after that: other
// timeouts do not count the sleep.
void SetHoldTimer(State& state);
// When to call AdvanceGroups again if nothing happens.
MonoTime NextDeadline(const State& state);

// Called when the agent is gone: kills everything, waits until it is gone (kShutDownLimit at most,
// or kRunnableUnkillableAfter for processes that only wait for a processor), and cleans up.
// DEADLINE_EXCEEDED: names the processes that are left.
absl::Status ShutDown(State& state);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_STOP_H_
