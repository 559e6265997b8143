// Of which clock the moments of holds are, in frames of each version: of CLOCK_BOOTTIME, which goes
// on while the machine sleeps, or in those of before of CLOCK_MONOTONIC. The two are the same on a
// machine that has never slept.
#ifndef CADRE_AGENT_SUPERVISOR_HOLD_CLOCK_H_
#define CADRE_AGENT_SUPERVISOR_HOLD_CLOCK_H_

#include <cstdint>

#include "absl/time/time.h"
#include "agent/supervisor/frames.h"
#include "base/clock.h"
#include "base/time.h"

namespace cadre::supervisor {

// Of BootNow(), as a peer that speaks `frames_version` says it.
inline MonoTime HoldSaid(MonoTime hold_until, uint32_t frames_version) {
  return frames_version == kFramesBefore ? hold_until + -TimeAsleep() : hold_until;
}

// And back.
inline MonoTime HoldMeant(MonoTime said, uint32_t frames_version) {
  return frames_version == kFramesBefore ? said + TimeAsleep() : said;
}

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_HOLD_CLOCK_H_
