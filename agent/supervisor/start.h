// Starts groups: gives each a new process, or makes a standby process the group. Supervisor's
// thread only.
//
// A standby process has one end of a socket, whose number is in CADRE_STANDS_BY. It writes a byte
// once it waits, and then reads its assignment: NAME=value entries, each terminated by a NUL as in
// /proc/PID/environ, and one more NUL.
#ifndef CADRE_AGENT_SUPERVISOR_START_H_
#define CADRE_AGENT_SUPERVISOR_START_H_

#include <cstdint>

#include "agent/supervisor/frames.h"
#include "agent/supervisor/groups.h"
#include "agent/supervisor/output.h"
#include "agent/supervisor/processes/spawn.h"
#include "base/time.h"

namespace cadre::supervisor {

// Starts the group's process once its files are there, or makes a standby process the group. If a
// step fails, it is reported in an ExitedFrame.
void StartGroup(State& state, const StartFrame& start);

// Continues starts whose files are ready or have taken too long.
void AdvanceStarts(State& state, MonoTime now);
MonoTime NextStartDeadline(const State& state);

// Makes a new process for the group. Returns false if there is none; `group.end` then holds the
// reason.
bool StartProcess(State& state, uint64_t serial, const StartFrame& start, OutputChannels& channels,
                  Group& group);

// Makes this process the group's own, connected through the channels.
void AttachProcess(State& state, uint64_t serial, const StartFrame& start, OutputChannels& channels,
                   Spawned process, Group& group);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_START_H_
