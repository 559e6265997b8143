// Everything the supervisor knows: one table of workers, one of generations, and what they share.
// Plain data; start.h, reap.h and stop.h act on it, loop.h feeds it events. Supervisor's thread.
#ifndef CADRE_AGENT_SUPERVISOR_STATE_H_
#define CADRE_AGENT_SUPERVISOR_STATE_H_

#include <sys/resource.h>
#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "agent/supervisor/cgroup_tree.h"
#include "agent/supervisor/frames.h"
#include "agent/supervisor/outbox.h"
#include "agent/supervisor/scoped_fd.h"
#include "agent/supervisor/stdio.h"
#include "base/time.h"

namespace cadre {

// What an epoll event is about; with a slot number it makes the event's tag.
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
  kCgroup
};

struct Worker {
  uint64_t generation = 0;
  uint32_t local_rank = 0;
  pid_t pid = 0;
  ScopedFd pidfd;
  ScopedFd exec_status;  // open until exec succeeded or failed
  std::string exec_step;
  int exec_errno = 0;
  bool exited = false;
  bool killed = false;  // SIGKILL came from us: no sign of the kernel's memory killer
  bool in_cgroup = false;
  std::string error_file;
  uint64_t memory_kills_before = 0;
  CapturedStream standard_output;
  CapturedStream standard_error;
  CapturedStream progress;
};

struct Generation {
  uint64_t slot = 0;
  std::vector<uint64_t> workers;  // slots
  ScopedFd cgroup_events;         // watched once all workers have exited
  bool stopping = false;
  bool killed = false;
  MonoTime hold_until = MonoTime::Never();  // then it is killed, stopping or not
  MonoTime kill_at = MonoTime::Never();     // when the grace ends
  MonoTime scan_at = MonoTime::Never();     // next look for survivors where cgroups do not tell
  MonoTime give_up_at = MonoTime::Never();  // for what even SIGKILL does not end
  std::map<uint32_t, ExitedFrame> exits;    // by local rank, for an agent that comes later
};

// How workers outlive their agent, where it asked for that; keep.h acts on it.
struct Keeping {
  absl::Duration time;  // 0: they do not
  bool said_goodbye = false;
  std::string path;
  std::string token;
  ScopedFd listener;
  // Who has connected last, and may become the agent once it has shown the token.
  ScopedFd candidate;
  frames::FrameReader candidate_reader{kMaxFrameBytes};
  bool candidate_knows_token = false;
  // While there is no agent: since when, and until when workers are kept.
  MonoTime alone_since = MonoTime::Never();
  MonoTime until = MonoTime::Never();
};

struct State {
  State(ScopedFd agent_socket, std::string supervisor_id, CgroupTree tree)
      : id(std::move(supervisor_id)),
        agent(std::move(agent_socket)),
        outbox(agent.get()),
        cgroups(std::move(tree)) {}

  std::string id;
  ScopedFd agent;
  frames::FrameReader agent_reader{kMaxFrameBytes};
  bool agent_wants_output = false;  // its socket is watched for room
  Outbox outbox;
  Keeping keeping;
  CgroupTree cgroups;
  ScopedFd epoll;
  ScopedFd null_device;
  rlimit descriptors = {};  // as it was before we raised ours
  bool cgroup_refused = false;

  uint64_t next_slot = 1;
  std::map<uint64_t, Worker> workers;  // by slot
  std::map<pid_t, uint64_t> by_pid;    // not yet reaped
  std::map<uint64_t, Generation> generations;
  // The last generations for which AllGone was sent: each gets it once.
  std::deque<uint64_t> gone;

  // epoll registration. The slot of what belongs to no worker or generation is 0.
  void Watch(int fd, Source source, uint64_t slot, uint32_t events) const;
  void Rewatch(int fd, Source source, uint64_t slot, uint32_t events) const;
  void Unwatch(int fd) const;
};

// Tells the agent, and remembers it with the generation.
void ReportExit(State& state, const ExitedFrame& exited);

// A worker's stream, closed and out of epoll.
void CloseStream(State& state, CapturedStream& stream);

}  // namespace cadre

#endif  // CADRE_AGENT_SUPERVISOR_STATE_H_
