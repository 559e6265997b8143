// What happens when processes end. Supervisor's thread only.
#ifndef CADRE_AGENT_SUPERVISOR_REAP_H_
#define CADRE_AGENT_SUPERVISOR_REAP_H_

#include <cstdint>

#include "absl/time/time.h"
#include "agent/supervisor/state.h"
#include "base/time.h"

namespace cadre::supervisor {

inline constexpr size_t kMaxErrorFileBytes = 64 << 10;
// How long an end is not reported because the process's files are not written, or not read.
inline constexpr absl::Duration kLastFilesLimit = absl::Seconds(1);

// The exec status pipe has something to say: StartedFrame, or the failure is noted.
void HandleExecStatus(State& state, uint64_t serial);

// If the process has ended: inspects it, kills the rest of its process group while the zombie still
// holds the group's number, passes on its output and reaps it. ExitedFrame follows once its files
// are written and read, or take too long.
void HandleExit(State& state, uint64_t serial);
void AdvanceExits(State& state, MonoTime now);
MonoTime NextExitDeadline(const State& state);

// Reaps everything that has ended: groups as above, and orphans that came to us as subreaper.
void ReapAll(State& state);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_REAP_H_
