// The frames between an agent and its supervisor, encoded as in rpc/frames/codec.h on a stream
// socket: a socket pair or, after an adoption, a connection. No Protobuf, so that the supervisor
// starts in under a millisecond.
//
// All frames are about groups. A group is one process that the supervisor has started for the
// agent, with all its descendants. The agent chooses the group's number and never reuses one; the
// supervisor does not interpret it.
//
//   the agent sends
//   Start     answered with Started, or with Exited and the step that failed; ignored if the
//               group exists
//   Stop      any number of times, the shortest grace counts; answered with Exited and AllGone,
//               or with AllGone alone if the process is gone or never existed
//   Signal    passed on to the group if it exists
//   Hold      a time at which the group is killed: Exited, AllGone
//   Keep      whether groups outlive the agent; a line on stderr if that is not possible
//   Reading   whether output of groups is passed on, or waits in their pipes
//   Directory of the agent: removed when the supervisor exits after its agent died
//   Goodbye   sent before the agent exits
//   Adopt     first on a connection to Keep's socket, by an agent that adopts the groups. Answered
//               once the earlier agent is gone: with Ready, Adopted, and Started and Exited of each
//               group again. If the token is wrong the socket is closed.
//   the supervisor sends
//   Ready     first
//   Started   once exec has succeeded, or a standby process has got its assignment
//   Output    whenever there is output
//   Exited    after all output of the process; its descendants may live on
//   Remains   once SIGKILL has not ended processes of the group for 5 s, and after each later
//               Stop
//   AllGone   after Stop or Hold, once no process of the group is left
//   Adopted   to an agent that adopts the groups
//   Template  the state of a program's template (templates.h): it is ready, or there is none
//
// A group may be started as a standby (StartFrame::stands_by): its process has everything but its
// assignment (rank, world size, ...), waits for that on a descriptor, and uses little meanwhile. A
// StartFrame with an assignment goes to a ready standby, which becomes the new group instead of a
// new process.
//
// If the socket ends without Goodbye the agent has died: all groups are killed, or kept if Keep was
// sent. An invalid frame is treated the same.
#ifndef CADRE_AGENT_SUPERVISOR_FRAMES_H_
#define CADRE_AGENT_SUPERVISOR_FRAMES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rpc/frames/frame_reader.h"

namespace cadre::supervisor {

// A longer frame is an error of the peer: 4 MiB hold the largest command and environment.
inline constexpr uint32_t kMaxFrameBytes = 4 << 20;
// The supervisor kills all groups within this time after the end of its socket.
inline constexpr absl::Duration kShutDownLimit = absl::Seconds(1);
// Incremented when a frame changes. An agent passes its version to the supervisor that it starts,
// and records it in AgentRun for an agent that adopts the supervisor.
inline constexpr uint32_t kFramesVersion = 11;
// The version of Cadre 0.3: it has no ReadingFrame, in StartFrame no files that the user named, and
// in SignalFrame no process_only.
inline constexpr uint32_t kFramesBefore = 10;

inline bool SpeaksFrames(uint32_t version) {
  return version == kFramesVersion || version == kFramesBefore;
}

// A rule for character devices, which all accelerators are. The first matching rule decides;
// devices that match none may be opened as the system allows.
struct DeviceRule {
  uint32_t major = 0;
  uint32_t first_minor = 0;
  uint32_t last_minor = UINT32_MAX;
  bool allowed = false;
};

// Limits for a group of another user, as far as the machine supports them
// (processes/cgroup_limits.h). The group's cgroup is created by the supervisor: the user may make
// cgroups in it, but cannot lift its limits.
struct Containment {
  bool asked = false;
  uint32_t uid = 0;  // the user to whom the cgroup is delegated
  uint32_t gid = 0;
  std::vector<DeviceRule> devices;
  uint64_t memory_bytes = 0;  // for all its processes, without swap; 0: no limit
  uint32_t max_pids = 0;      // processes and threads; 0: no limit
};

// For a Python program: its workers may be forked from a process that has imported its packages.
// For another program, such as a shell script, the Python interpreters that it starts get the hook
// that dumps their stacks.
struct WarmOptions {
  bool IsPython() const { return !module.empty() || !script.empty(); }

  std::string directory;  // owned by this user; holds files for the interpreters; empty: no hook
  std::string module;     // of python -m
  std::string script;     // otherwise the script; as in argv
  std::vector<std::string> preload;         // imported besides the imports that were observed
  std::vector<std::string> rank_variables;  // names of variables that may differ between workers
  // A program that has imported nothing for so long counts as started, and a template may be made.
  uint32_t quiet_ms = 2000;
};

// A file that the user named for a stream (logs.stdout_file).
struct NamedFile {
  std::string path;  // absolute; its directory must exist; empty: the user named none
  // What the file contains is removed first if it was last written before this time, in
  // milliseconds since 1970. 0: it stays.
  int64_t empty_before_ms = 0;
};

struct StartFrame {
  uint64_t group = 0;
  std::vector<std::string> argv;         // argv[0] is looked up in the PATH of `environment`
  std::vector<std::string> environment;  // NAME=value, complete; CADRE_PROGRESS_FD is added
  std::string working_dir;               // must exist, there is no fallback
  std::string stdout_path;               // opened O_APPEND|O_CREAT|O_CLOEXEC; empty: no file
  std::string stderr_path;
  bool forward_stdout = true;  // also sent as OutputFrame
  bool forward_stderr = true;
  std::string error_file;  // read at exit into ExitedFrame::error_json; removed before the start
  std::vector<uint32_t> cpus;  // bind to these before the first thread starts; empty: do not bind
  // Starts a standby process, which gets CADRE_STANDS_BY, the number of a descriptor (start.h).
  // None of its output is forwarded.
  bool stands_by = false;
  // NAME=value entries of `environment` that a standby has to be sent to become this group. Its log
  // files move to this frame's paths. If empty, a new process is always started.
  std::vector<std::string> assignment;
  WarmOptions warm;
  Containment containment;
  // The output goes there, and stdout_path and stderr_path become symbolic links to these files. If
  // both are the same, the process has one stream for both, so that its lines keep their order. A
  // supervisor of kFramesBefore writes to stdout_path and stderr_path.
  NamedFile stdout_file;
  NamedFile stderr_file;
};
// Sends SIGTERM and SIGCONT to the process (stop.h; to its process group if it is a shell), and
// SIGKILL to the whole group after the grace, or once the process has exited.
struct StopFrame {
  uint64_t group = 0;
  uint32_t grace_ms = 0;
};
struct SignalFrame {
  uint64_t group = 0;
  int32_t signal = 0;  // sent as in StopFrame
  // Whether the process alone gets the signal even if it is a shell. A supervisor of kFramesBefore
  // does not know this field.
  bool process_only = false;
};
// The group is killed without grace at this time of CLOCK_BOOTTIME (microseconds), which advances
// while the machine sleeps, unless a later time arrives before. This holds even if the agent has
// died.
struct HoldFrame {
  uint64_t group = 0;
  int64_t until_us = 0;
};
// From now on groups outlive an agent that ends without a GoodbyeFrame: for `keep_ms` another agent
// may connect to `socket_path`, which is made with mode 0600, and adopt them.
struct KeepFrame {
  uint32_t keep_ms = 0;  // 0: groups are no longer kept
  std::string socket_path;
  std::string token;  // the secret that an adopting agent has to send
};
// Sent when the reader of the agent's output is slow. Forwarded output of groups then waits in its
// pipe, as if that reader read the pipe itself, until the agent allows reading again or is gone.
struct ReadingFrame {
  bool reads = true;
};
struct DirectoryFrame {
  std::string path;
};
struct GoodbyeFrame {};
struct AdoptFrame {
  std::string token;
};

struct ReadyFrame {
  int32_t pid = 0;
  // The cgroup of all groups, which the agent kills if the supervisor dies. Empty if cgroups cannot
  // be used; `degraded` then holds the reason.
  std::string cgroup;
  std::string degraded;
};
struct StartedFrame {
  uint64_t group = 0;
  int32_t pid = 0;
  // The standby group that became this one and no longer exists; 0: a new process.
  uint64_t was = 0;
  bool warm = false;      // forked from a template
  std::string why_plain;  // why a program that could be forked was not; otherwise empty
};
// Sent for a Python program once the group whose imports are recorded has imported nothing more for
// a while; once for each such group.
struct ImportedFrame {
  uint64_t group = 0;
  uint32_t milliseconds = 0;  // from its start to the last import; 0: no imports
};
// Describes the template of one command line.
struct TemplateFrame {
  int32_t pid = 0;  // 0: there is no template any more or, if there are notes, only they are meant
  uint32_t modules = 0;
  uint32_t milliseconds = 0;       // the time it took to import them
  std::vector<std::string> notes;  // messages for the user, a line each; sent once
};
struct ExitedFrame {
  uint64_t group = 0;
  int32_t pid = 0;  // 0: there was no process
  int32_t exit_code = 0;
  int32_t signal = 0;
  bool core_dumped = false;
  int32_t exec_errno = 0;
  std::string exec_step;
  bool out_of_memory = false;
  uint64_t memory_limit = 0;  // of the supervisor's cgroup if it was reached; else 0
  std::string last_lines;     // at most 64 KiB of stderr, or of stdout if stderr is empty
  std::string error_json;     // at most 64 KiB
};
struct OutputFrame {
  uint64_t group = 0;
  uint8_t stream = 1;    // 1 stdout, 2 stderr, 3 CADRE_PROGRESS_FD
  uint32_t dropped = 0;  // bytes dropped before this because the agent did not read
  std::string bytes;
};
struct AllGoneFrame {
  uint64_t group = 0;
};
// The groups that can be adopted: those that exist, and those that have ended since a worker was
// last started. StartedFrame and ExitedFrame of each follow, even if the earlier agent had got
// them, and so does output since that agent died.
struct AdoptedFrame {
  std::string id;  // the supervisor's id, chosen by the agent that started it
  std::vector<uint64_t> groups;
  uint32_t alone_ms = 0;      // how long there was no agent
  int64_t hold_until_us = 0;  // the earliest of all groups, of CLOCK_BOOTTIME; 0: there is none
  bool stopping = false;      // a group is being stopped, and its grace continues
};

// A process that is blocked in the kernel, where signals do not reach it: in a file system that
// does not answer, or a driver.
struct RemainingProcess {
  int32_t pid = 0;
  char state = '?';             // as in /proc/PID/stat
  std::string kernel_function;  // in which it waits; empty: not known
};
struct RemainsFrame {
  uint64_t group = 0;
  std::vector<RemainingProcess> processes;
};

using Frame = std::variant<StartFrame, StopFrame, SignalFrame, ReadyFrame, StartedFrame,
                           ExitedFrame, OutputFrame, AllGoneFrame, HoldFrame, KeepFrame,
                           GoodbyeFrame, AdoptFrame, AdoptedFrame, RemainsFrame, TemplateFrame,
                           ImportedFrame, DirectoryFrame, ReadingFrame>;

// The frame with its length in front, for a peer of version `version`. Empty if that version does
// not know this kind of frame, which is then left out.
std::string EncodeFrame(const Frame& frame, uint32_t version = kFramesVersion);

// The next whole frame of a reader of kMaxFrameBytes; nullopt if more bytes are needed;
// INVALID_ARGUMENT if the peer is broken (too long, unknown type, inconsistent lengths).
absl::StatusOr<std::optional<Frame>> NextFrame(frames::FrameReader& reader,
                                               uint32_t version = kFramesVersion);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_FRAMES_H_
