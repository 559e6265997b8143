// The protocol of the agent and its supervisor over a SOCK_STREAM socketpair, as messages.h puts it
// into frames. No Protobuf: the supervisor starts in under a millisecond.
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

namespace cadre {

// A frame longer than this is a broken peer: 4 MiB holds the largest command and environment.
inline constexpr uint32_t kMaxFrameBytes = 4 << 20;
// The end of the socket is an order too, where no KeepFrame came: all workers are killed, within
// this.
inline constexpr absl::Duration kShutDownLimit = absl::Seconds(1);
// Changes when a frame does: an agent takes over the supervisor of one that spoke the same.
inline constexpr uint32_t kFramesVersion = 1;

// --- agent to supervisor ---
struct StartFrame {
  uint64_t generation = 0;
  uint32_t local_rank = 0;
  std::vector<std::string> argv;         // argv[0] is looked up in the PATH of `environment`
  std::vector<std::string> environment;  // NAME=value, complete; CADRE_PROGRESS_FD is added
  std::string working_dir;               // must exist: no falling back
  std::string stdout_path;               // opened O_APPEND|O_CREAT|O_CLOEXEC; empty: no file
  std::string stderr_path;
  bool forward_stdout = true;  // also as OutputFrame
  bool forward_stderr = true;
  std::string error_file;  // read at exit into ExitedFrame::error_json; removed before the start
  std::vector<uint32_t> cpus;  // bind to these before the first thread; empty: leave
};
// SIGTERM and SIGCONT to every group of the generation, SIGKILL (cgroup.kill) after the grace.
struct StopFrame {
  uint64_t generation = 0;
  uint32_t grace_ms = 0;
};
// Forward a signal to every worker's group.
struct SignalFrame {
  uint64_t generation = 0;
  int32_t signal = 0;
};

// The generation is killed, with no grace, at this moment of CLOCK_MONOTONIC (microseconds), unless
// a later one comes first: whatever becomes of the agent meanwhile.
struct HoldFrame {
  uint64_t generation = 0;
  int64_t until_us = 0;
};

// From now on the workers outlive an agent that goes without a GoodbyeFrame: for `keep_ms` another
// one may connect to `socket_path`, which is made with mode 0600, and take them over.
struct KeepFrame {
  uint32_t keep_ms = 0;  // 0: not any more
  std::string socket_path;
  std::string token;  // what the other one has to know
};
// The agent ends, and so do its workers, with no grace.
struct GoodbyeFrame {};
// The first frame on a connection to that socket. Answered with ReadyFrame and AdoptedFrame once
// the agent before is gone.
struct AdoptFrame {
  std::string token;
};

// --- supervisor to agent ---
// Sent first: where the workers' cgroups are, for the agent to kill if the supervisor dies; empty
// when there are none, and then `degraded` says why.
struct ReadyFrame {
  int32_t pid = 0;
  std::string cgroup;
  std::string degraded;
};
struct StartedFrame {
  uint64_t generation = 0;
  uint32_t local_rank = 0;
  int32_t pid = 0;
};
struct ExitedFrame {
  uint64_t generation = 0;
  uint32_t local_rank = 0;
  int32_t pid = 0;
  int32_t exit_code = 0;
  int32_t signal = 0;
  bool core_dumped = false;
  int32_t exec_errno = 0;
  std::string exec_step;
  bool out_of_memory = false;
  std::string last_lines;  // at most 4 KiB of stderr (stdout where that is empty)
  std::string error_json;  // at most 64 KiB
};
struct OutputFrame {
  uint64_t generation = 0;
  uint32_t local_rank = 0;
  uint8_t stream = 1;    // 1 stdout, 2 stderr, 3 CADRE_PROGRESS_FD
  uint32_t dropped = 0;  // bytes left out before this because the agent did not read
  std::string bytes;
};
// No process of the generation is left on this machine.
struct AllGoneFrame {
  uint64_t generation = 0;
};

// What the agent takes over: the newest generation, of which StartedFrame and ExitedFrame of each
// worker follow, also those that the agent before was sent, and what workers wrote since it died.
struct AdoptedFrame {
  std::string id;  // the supervisor's, as the agent before had chosen it
  uint64_t generation = 0;
  uint32_t workers = 0;       // that it was told to start
  uint32_t alone_ms = 0;      // for so long there was no agent
  int64_t hold_until_us = 0;  // of the last HoldFrame; 0: there was none
};

using Frame = std::variant<StartFrame, StopFrame, SignalFrame, ReadyFrame, StartedFrame,
                           ExitedFrame, OutputFrame, AllGoneFrame, HoldFrame, KeepFrame,
                           GoodbyeFrame, AdoptFrame, AdoptedFrame>;

// The frame with its length in front.
std::string EncodeFrame(const Frame& frame);

// The next whole frame of a reader of kMaxFrameBytes; nullopt when more bytes are needed;
// INVALID_ARGUMENT for a broken peer (too long, unknown type, lengths that do not add up).
absl::StatusOr<std::optional<Frame>> NextFrame(frames::FrameReader& reader);

}  // namespace cadre

#endif  // CADRE_AGENT_SUPERVISOR_FRAMES_H_
