// Everything the supervisor knows: one table of groups, and what they share. Plain data; start.h,
// reap.h and stop.h act on it, loop.h feeds it events. Supervisor's thread.
#ifndef CADRE_AGENT_SUPERVISOR_STATE_H_
#define CADRE_AGENT_SUPERVISOR_STATE_H_

#include <sys/resource.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "agent/supervisor/frames.h"
#include "agent/supervisor/outbox.h"
#include "agent/supervisor/output/plumbing.h"
#include "agent/supervisor/output/stdio.h"
#include "agent/supervisor/processes/cgroup_tree.h"
#include "agent/supervisor/warm/warm_state.h"
#include "base/scoped_fd.h"
#include "base/threads/file_thread.h"
#include "base/time.h"

namespace cadre::supervisor {

// What an epoll event is about; with a group's serial number it makes the event's tag.
enum class Source : uint8_t {
  kAgent,
  kListener,
  kCandidate,
  kSignals,
  kExit,
  kExec,
  kStdout,
  kStderr,
  kProgress,
  kCgroup,
  kTemplate,
  kFiles,
  kHold
};

// How a group is ended.
struct Ending {
  bool asked = false;   // by a StopFrame, or because its hold is over
  bool warned = false;  // it got SIGTERM, and has until kill_at
  bool alone = false;   // nothing that it started got that with it
  bool killed = false;  // SIGKILL came from us: no sign of the kernel's memory killer
  // The process died of that SIGTERM, as a script's shell does, so it waited for nothing that it
  // had started: that gets SIGTERM now, and the rest of the grace is for its process group.
  bool outlived = false;
  // Then it is killed, asked for or not. Of BootNow(), unlike all others.
  MonoTime hold_until = MonoTime::Never();
  MonoTime kill_at = MonoTime::Never();    // when the grace ends
  MonoTime scan_at = MonoTime::Never();    // next look for survivors where cgroups do not tell
  MonoTime report_at = MonoTime::Never();  // what SIGKILL has not ended by then
  MonoTime told_by = MonoTime::Never();    // from then on also what would end by itself
  bool looks_again = false;  // nobody asks, but something may have come to stand still
  std::set<pid_t> remains;   // of which that was said
  ScopedFd cgroup_events;    // watched once the process has exited
};

// What a process that has ended wrote to files. The file thread's until `done`.
struct LastFiles {
  std::atomic<bool> done{false};
  std::string error_json;
};

struct Group {
  uint64_t id = 0;  // the agent's
  pid_t pid = 0;    // 0: no process could be made
  ScopedFd pidfd;
  ScopedFd exec_status;  // open until exec succeeded or failed
  ExitedFrame end;       // so far it is known; complete once the process has exited
  bool exited = false;
  bool reported = false;                  // that it has
  std::unique_ptr<ComingStart> coming;    // its files are not there yet (start.h)
  std::shared_ptr<LastFiles> last_files;  // what its end is reported with (reap.h)
  MonoTime report_by = MonoTime::Never();
  bool in_cgroup = false;
  std::string error_file;
  uint64_t memory_kills_before = 0;
  uint64_t limit_reached_before = 0;
  CapturedStream standard_output;
  CapturedStream standard_error;
  CapturedStream progress;
  Ending ending;
  uint64_t program = 0;                   // of State::programs; 0: it is never started warm
  std::unique_ptr<WarmStart> warm_start;  // on its way (warm_start.h)
  bool warm = false;                      // forked from a template
  std::string why_plain;                  // StartedFrame's
  ScopedFd standby;  // where it gets its assignment (standby.h); not ok(): it does not stand by
};

struct Agent {
  ScopedFd socket;  // not ok(): it is gone
  frames::FrameReader reader{kMaxFrameBytes};
  bool watched_for_room = false;
};

// How groups outlive their agent, where it asked for that; keep.h acts on it.
struct Keeping {
  absl::Duration time;  // 0: they do not
  bool said_goodbye = false;
  std::string path;
  std::string token;
  ScopedFd listener;
  // The newest connection, which may become the agent once it has shown the token.
  Agent candidate;
  bool candidate_knows_token = false;
  // Of groups that are gone, since a worker was started last: whoever takes over may never have
  // heard of them.
  std::vector<ExitedFrame> ended;
  // While there is no agent: since when, and until when groups are kept.
  MonoTime alone_since = MonoTime::Never();
  MonoTime until = MonoTime::Never();
};

struct State {
  State(ScopedFd agent_socket, std::string supervisor_id, CgroupTree tree,
        uint32_t frames_version = kFramesVersion)
      : id(std::move(supervisor_id)),
        frames_version(frames_version),
        outbox(agent_socket.get(), frames_version),
        cgroups(std::move(tree)) {
    agent.socket = std::move(agent_socket);
  }

  const std::string id;
  const uint32_t frames_version;  // that all of its agents speak
  FileThread files{{true}};
  Agent agent;
  std::string agent_directory;  // removed when the agent has died; empty: not known
  Outbox outbox;
  bool agent_reads = true;  // as ReadingFrame has it
  Keeping keeping;
  CgroupTree cgroups;
  std::set<std::string> complaints;  // of what cannot be done for groups; each is said once
  ScopedFd epoll;
  // Of BootNow(), for the earliest hold; `hold_armed` is what it is set to.
  ScopedFd hold_timer;
  MonoTime hold_armed = MonoTime::Never();
  ScopedFd null_device;
  rlimit descriptors = {};  // as it was before we raised ours

  // By serial number: the supervisor's own, used once, which names the group's cgroup too.
  std::map<uint64_t, Group> groups;
  std::map<uint64_t, uint64_t> by_id;  // serials
  std::map<pid_t, uint64_t> by_pid;    // serials of those whose process is not yet reaped
  uint64_t next_serial = 1;

  // Python programs, by a number of the supervisor's own, and the processes of their templates.
  std::map<uint64_t, WarmProgram> programs;
  std::set<pid_t> template_pids;

  // Whether the supervisor has started this child of its own.
  bool IsOurs(pid_t pid) const { return by_pid.count(pid) != 0 || template_pids.count(pid) != 0; }
  // nullptr: there is none.
  Group* Find(uint64_t group_id);
  // In the environment of the group's processes (process_scan.h).
  std::string MarkerOf(uint64_t serial) const;

  // epoll registration. The serial number of what belongs to no group is 0.
  void Watch(int fd, Source source, uint64_t serial, uint32_t events) const;
  void Rewatch(int fd, Source source, uint64_t serial, uint32_t events) const;
  void Unwatch(int fd) const;
};

// The group's process has ended as `group.end` says.
void ReportExit(State& state, Group& group);

// What is in the pipes goes to the agent and to files.
void PassOnOutput(State& state, Group& group);

// Closes the stream and takes it out of epoll.
void CloseStream(State& state, CapturedStream& stream);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_STATE_H_
