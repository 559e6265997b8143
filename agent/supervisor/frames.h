// What an agent and its supervisor say to each other, as rpc/frames/messages.h puts it on a stream
// socket: a socket pair, or after an adoption a connection. No Protobuf: the supervisor starts in
// under a millisecond.
//
// Everything is about groups: a group is one process that the supervisor has started for the agent,
// with all that it starts in turn. The agent chooses the group's number, and uses none twice; the
// supervisor reads nothing into it.
//
//   the agent sends
//     Start     answered with Started, or with Exited and the step that failed; ignored where the
//               group is there
//     Stop      any number of times, and the shortest grace counts; answered with Exited and
//               AllGone, or with AllGone alone where the process is gone or never was
//     Signal    passed on to the group, if it is there
//     Hold      at its moment the group is killed: Exited, AllGone
//     Keep      whether groups outlive the agent; a line on stderr where that cannot be
//     Reading   whether what groups write is to be passed on, or waits in their pipes
//     Directory of the agent: removed when the supervisor ends after an agent that died
//     Goodbye   before it ends
//     Adopt     first on a connection to Keep's socket, by an agent that takes over; answered,
//               once the one before is gone, with Ready, Adopted, and Started and Exited of each
//               group again; with the socket's end where the token is another one
//   the supervisor sends
//     Ready     first
//     Started   once exec has succeeded, or one that stood by has its assignment
//     Output    as it comes
//     Exited    after all output of the process; what that has started may live on
//     Remains   once SIGKILL has not ended processes of the group for 5 s, and after each later
//               Stop
//     AllGone   after Stop or Hold, once no process of the group is left
//     Adopted   to an agent that takes over
//     Template  what became of a program's template (templates.h): it is ready, or there is none
//
// A group whose StartFrame says so stands by: it has everything but its assignment (rank, world
// size, ...), waits for that on a descriptor, and is not in the way of anything. A StartFrame with
// an assignment goes to one that is ready, which from then on is the new group, and not a new
// process.
//
// The end of the socket without Goodbye is the agent's death: all groups are killed, or kept as
// Keep says. A frame that makes no sense counts as that.
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

// A longer frame is a broken peer's: 4 MiB hold the largest command and environment.
inline constexpr uint32_t kMaxFrameBytes = 4 << 20;
// After the end of its socket the supervisor kills all groups within this.
inline constexpr absl::Duration kShutDownLimit = absl::Seconds(1);
// Changes when a frame does. An agent says to the supervisor that it starts which one it speaks,
// and leaves it to who takes that over (AgentRun).
inline constexpr uint32_t kFramesVersion = 11;
// Of Cadre 0.2: without warm starts, and holds are of CLOCK_MONOTONIC. Its agents say nothing.
inline constexpr uint32_t kFramesBefore = 5;

inline bool SpeaksFrames(uint32_t version) {
  return version == kFramesVersion || version == kFramesBefore;
}

// For character devices, since every accelerator is one. The first rule that fits decides; what
// none fits may be opened as the system allows.
struct DeviceRule {
  uint32_t major = 0;
  uint32_t first_minor = 0;
  uint32_t last_minor = UINT32_MAX;
  bool allowed = false;
};

// What a group of another user's is held to, where the machine can do so (processes/contain.h). Its
// cgroup is the supervisor's: whoever runs there may divide it, and cannot lift its limits.
struct Containment {
  bool asked = false;
  uint32_t uid = 0;  // to whom the cgroup is delegated
  uint32_t gid = 0;
  std::vector<DeviceRule> devices;
  uint64_t memory_bytes = 0;  // of all its processes, none of it swapped; 0: no limit
  uint32_t max_pids = 0;      // processes and threads; 0: no limit
};

// Of a Python program: its workers may be forked from a process that has imported its packages. Of
// another one, such as a shell's script, the interpreters that it starts answer with their stacks.
struct WarmOptions {
  bool IsPython() const { return !module.empty() || !script.empty(); }

  std::string directory;  // this user's alone, for what the interpreters read; empty: neither
  std::string module;     // of python -m
  std::string script;     // else; as it is in argv.
  std::vector<std::string> preload;         // imported besides what the program is seen to import
  std::vector<std::string> rank_variables;  // names: those that may differ from worker to worker
  // A program that has imported nothing for so long has begun, and leaves room for a template.
  uint32_t quiet_ms = 2000;
};

struct StartFrame {
  uint64_t group = 0;
  std::vector<std::string> argv;         // argv[0] is looked up in the PATH of `environment`
  std::vector<std::string> environment;  // NAME=value, complete; CADRE_PROGRESS_FD is added
  std::string working_dir;               // must exist: no falling back
  std::string stdout_path;               // opened O_APPEND|O_CREAT|O_CLOEXEC; empty: no file
  std::string stderr_path;
  bool forward_stdout = true;  // also as OutputFrame
  bool forward_stderr = true;
  std::string error_file;  // read at exit into ExitedFrame::error_json; removed before the start
  std::vector<uint32_t> cpus;  // bind to these before the first thread; empty: leave
  // The process gets CADRE_STANDS_BY, the number of a descriptor (standby.h). None of its output is
  // forwarded.
  bool stands_by = false;
  // NAME=value, of `environment`: what one that stands by has to be told to take this place. Its
  // log files move to this frame's paths. Empty: always a new process.
  std::vector<std::string> assignment;
  WarmOptions warm;
  Containment containment;
};
// SIGTERM and SIGCONT to the process group, SIGKILL to everything after the grace or once the
// process has exited.
struct StopFrame {
  uint64_t group = 0;
  uint32_t grace_ms = 0;
};
struct SignalFrame {
  uint64_t group = 0;
  int32_t signal = 0;  // to the process group
};
// The group is killed, with no grace, at this moment of CLOCK_BOOTTIME (microseconds), which goes
// on while the machine sleeps, unless a later one comes first: whatever becomes of the agent
// meanwhile.
struct HoldFrame {
  uint64_t group = 0;
  int64_t until_us = 0;
};
// From now on groups outlive an agent that goes without a GoodbyeFrame: for `keep_ms` another one
// may connect to `socket_path`, which is made with mode 0600, and take them over.
struct KeepFrame {
  uint32_t keep_ms = 0;  // 0: not any more
  std::string socket_path;
  std::string token;  // what the other one has to know
};
// Who reads what the agent shows does not keep up: what groups write to a stream that is passed on
// waits in its pipe, as if that reader read the pipe itself, until the agent says otherwise or is
// gone.
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
  // Where the groups' cgroups are, for the agent to kill should the supervisor die; empty where
  // there are none, and then `degraded` says why.
  std::string cgroup;
  std::string degraded;
};
struct StartedFrame {
  uint64_t group = 0;
  int32_t pid = 0;
  uint64_t was = 0;       // the group as which it stood by, and which is no more; 0: a new process
  bool warm = false;      // forked from a template
  std::string why_plain;  // of a program that could be warm; empty: of any other
};
// Of a Python program: the group whose imports are written down has imported nothing more for a
// while. Once for each such group.
struct ImportedFrame {
  uint64_t group = 0;
  uint32_t milliseconds = 0;  // from its start to the last import; 0: it has imported nothing
};
// There is one for each command line.
struct TemplateFrame {
  int32_t pid = 0;  // 0 with notes: nothing is said of it; without: there is none any more
  uint32_t modules = 0;
  uint32_t milliseconds = 0;       // that it took to import them
  std::vector<std::string> notes;  // what a user should know, a line each; said once
};
struct ExitedFrame {
  uint64_t group = 0;
  int32_t pid = 0;  // 0: there was none
  int32_t exit_code = 0;
  int32_t signal = 0;
  bool core_dumped = false;
  int32_t exec_errno = 0;
  std::string exec_step;
  bool out_of_memory = false;
  uint64_t memory_limit = 0;  // of the supervisor's cgroup, which was reached; 0: not that
  std::string last_lines;     // at most 64 KiB of stderr (stdout where that is empty)
  std::string error_json;     // at most 64 KiB
};
struct OutputFrame {
  uint64_t group = 0;
  uint8_t stream = 1;    // 1 stdout, 2 stderr, 3 CADRE_PROGRESS_FD
  uint32_t dropped = 0;  // bytes left out before this because the agent did not read
  std::string bytes;
};
struct AllGoneFrame {
  uint64_t group = 0;
};
// What there is to take over: groups that are there, and those that are gone since a worker was
// started last. StartedFrame and ExitedFrame follow although the agent before was sent them, and so
// does what was written since it died.
struct AdoptedFrame {
  std::string id;  // the supervisor's, as the agent before had chosen it
  std::vector<uint64_t> groups;
  uint32_t alone_ms = 0;      // for so long there was no agent
  int64_t hold_until_us = 0;  // the earliest of them, of CLOCK_BOOTTIME; 0: there is none
  bool stopping = false;      // a group that is there is being ended, and its grace goes on
};

// A process that sits in the kernel, where no signal reaches it: in a file system that does not
// answer, or a driver.
struct RemainingProcess {
  int32_t pid = 0;
  char state = '?';             // as in /proc/PID/stat
  std::string kernel_function;  // that it waits in; empty: not known
};
struct RemainsFrame {
  uint64_t group = 0;
  std::vector<RemainingProcess> processes;
};

using Frame = std::variant<StartFrame, StopFrame, SignalFrame, ReadyFrame, StartedFrame,
                           ExitedFrame, OutputFrame, AllGoneFrame, HoldFrame, KeepFrame,
                           GoodbyeFrame, AdoptFrame, AdoptedFrame, RemainsFrame, TemplateFrame,
                           ImportedFrame, DirectoryFrame, ReadingFrame>;

// The frame with its length in front, for a peer that speaks `version`. Empty: that knows none of
// its kind, and does without. Moments are not converted.
std::string EncodeFrame(const Frame& frame, uint32_t version = kFramesVersion);

// The next whole frame of a reader of kMaxFrameBytes; nullopt when more bytes are needed;
// INVALID_ARGUMENT for a broken peer (too long, unknown type, lengths that do not add up).
absl::StatusOr<std::optional<Frame>> NextFrame(frames::FrameReader& reader,
                                               uint32_t version = kFramesVersion);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_FRAMES_H_
