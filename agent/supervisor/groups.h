// The supervisor's state: one table of groups, what they share, and the exits of their processes.
// start.h gives a group its process, stop.h ends it, and loop.h calls these functions when an event
// comes. Supervisor's thread.
#ifndef CADRE_AGENT_SUPERVISOR_GROUPS_H_
#define CADRE_AGENT_SUPERVISOR_GROUPS_H_

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
#include "agent/supervisor/frame_queue.h"
#include "agent/supervisor/frames.h"
#include "agent/supervisor/output.h"
#include "agent/supervisor/processes/cgroups.h"
#include "agent/supervisor/warm/warm_state.h"
#include "base/scoped_fd.h"
#include "base/threads/file_thread.h"
#include "base/time.h"

namespace cadre::supervisor {

// The source of an epoll event; with a group's serial number it makes the event's tag.
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

// The state of a group's stop.
struct StopState {
  bool requested = false;     // by a StopFrame, or because its hold is over
  bool term_sent = false;     // it was sent SIGTERM, and has until kill_at
  bool process_only = false;  // SIGTERM was sent to the process alone
  bool killed = false;        // we sent SIGKILL, so it is no sign of an OOM kill
  // The process died of that SIGTERM, as a script's shell does, so it did not wait for its
  // children: they are sent SIGTERM now, and the rest of the grace is for its process group.
  bool died_of_term = false;
  // The group is killed at this time, even without a stop. It is a time of BootNow(), unlike all
  // others.
  MonoTime hold_until = MonoTime::Never();
  MonoTime kill_at = MonoTime::Never();        // when the grace ends
  MonoTime scan_at = MonoTime::Never();        // next search for survivors without cgroups
  MonoTime report_at = MonoTime::Never();      // when to report what SIGKILL has not ended
  MonoTime report_all_at = MonoTime::Never();  // from then on also what would end by itself
  bool report_new_only = false;                // the next report is skipped if it has nothing new
  std::set<pid_t> unkillable;                  // processes that were reported
  ScopedFd cgroup_events;                      // watched once the process has exited
};

// A start whose files are being made by the file thread.
struct PendingStart {
  // Owned by the file thread until `done`.
  struct Files {
    std::atomic<bool> done{false};
    std::atomic<bool> given_up{false};  // the start no longer waits
    std::string failed;                 // the step that failed
    int error = 0;
  };
  StartFrame start;
  OutputChannels channels;
  std::shared_ptr<Files> files;
  MonoTime until = MonoTime::Never();
};

// Files that an exited process wrote. Owned by the file thread until `done`.
struct LastFiles {
  std::atomic<bool> done{false};
  std::string error_json;
};

struct Group {
  uint64_t id = 0;  // the agent's number
  pid_t pid = 0;    // 0: no process could be made
  ScopedFd pidfd;
  ScopedFd exec_status;  // open until exec has succeeded or failed
  ExitedFrame end;       // as far as known; complete once the process has exited
  bool exited = false;
  bool reported = false;                        // ExitedFrame was sent
  std::unique_ptr<PendingStart> pending_start;  // set while its files are made (start.h)
  std::shared_ptr<LastFiles> last_files;        // needed for the report of its exit
  MonoTime report_by = MonoTime::Never();
  bool in_cgroup = false;
  std::string error_file;
  uint64_t memory_kills_before = 0;
  uint64_t limit_reached_before = 0;
  CapturedStream standard_output;
  CapturedStream standard_error;
  CapturedStream progress;
  StopState stop_state;
  uint64_t program = 0;                   // of State::programs; 0: it is never started warm
  std::unique_ptr<WarmStart> warm_start;  // set while it is under way (warm_start.h)
  bool warm = false;                      // forked from a template
  std::string why_plain;                  // for StartedFrame
  ScopedFd standby;  // the socket for its assignment (start.h); not ok(): not a standby
};

struct Agent {
  ScopedFd socket;  // not ok(): the agent is gone
  frames::FrameReader reader{kMaxFrameBytes};
  bool watched_for_room = false;
};

// How groups outlive their agent, if it asked for that; see agent_loss.h.
struct Adoption {
  absl::Duration keep_time;  // 0: they do not
  bool said_goodbye = false;
  std::string path;
  std::string token;
  ScopedFd listener;
  // The newest connection, which becomes the agent once it has sent the token and the earlier agent
  // is gone.
  Agent candidate;
  bool candidate_authenticated = false;
  // Ends of groups since a worker was last started; an adopting agent may not have got them.
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
  const uint32_t frames_version;  // used by all of its agents
  FileThread files{{true}};
  Agent agent;
  std::string agent_directory;  // removed if the agent has died; empty: not known
  FrameQueue outbox;
  bool agent_reads = true;  // the last ReadingFrame
  Adoption adoption;
  CgroupTree cgroups;
  std::set<std::string> warnings;  // about limits that cannot be set; each is given once
  ScopedFd epoll;
  // A timer of BootNow() for the earliest hold; `hold_armed` is the time it is set to.
  ScopedFd hold_timer;
  MonoTime hold_armed = MonoTime::Never();
  ScopedFd null_device;
  rlimit descriptors = {};  // the limit before we raised ours

  // By serial number: the supervisor's own, never reused, which also names the group's cgroup.
  std::map<uint64_t, Group> groups;
  std::map<uint64_t, uint64_t> by_id;  // the agent's number to serial
  std::map<pid_t, uint64_t> by_pid;    // to serial, for processes that are not yet reaped
  uint64_t next_serial = 1;

  // Python programs, by a number of the supervisor's own, and the processes of their templates.
  std::map<uint64_t, WarmProgram> programs;
  std::set<pid_t> template_pids;

  // Whether this child was started by the supervisor itself.
  bool IsOurs(pid_t pid) const { return by_pid.count(pid) != 0 || template_pids.count(pid) != 0; }
  // Returns nullptr if there is none.
  Group* Find(uint64_t group_id);
  // The marker in the environment of the group's processes (process_scan.h).
  std::string MarkerOf(uint64_t serial) const;

  // epoll registration. Descriptors that belong to no group have serial number 0.
  void Watch(int fd, Source source, uint64_t serial, uint32_t events) const;
  void Rewatch(int fd, Source source, uint64_t serial, uint32_t events) const;
  void Unwatch(int fd) const;
};

// Reports that the group's process has ended, as recorded in `group.end`.
void ReportExit(State& state, Group& group);

// Passes on what is in the pipes to the agent and to files.
void PassOnOutput(State& state, Group& group);

// Closes the stream and takes it out of epoll.
void CloseStream(State& state, CapturedStream& stream);

inline constexpr size_t kMaxErrorFileBytes = 64 << 10;
// How long the report of an exit may be delayed while the process's files are written or read.
inline constexpr absl::Duration kLastFilesLimit = absl::Seconds(1);

// The exec status pipe is readable: sends StartedFrame, or notes the failure.
void HandleExecStatus(State& state, uint64_t serial);

// If the process has exited: inspects it, kills the rest of its process group while the zombie
// still holds the group's number, passes on its output and reaps it. ExitedFrame follows once its
// files are written and read, or take too long.
void HandleExit(State& state, uint64_t serial);
void AdvanceExits(State& state, MonoTime now);
MonoTime NextExitDeadline(const State& state);

// Reaps every child that has exited: groups' processes as above, and orphans reparented to this
// subreaper.
void ReapAll(State& state);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_GROUPS_H_
