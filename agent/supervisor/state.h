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

#include "agent/supervisor/cgroup_tree.h"
#include "agent/supervisor/outbox.h"
#include "agent/supervisor/scoped_fd.h"
#include "agent/supervisor/stdio.h"
#include "base/time.h"

namespace cadre {

// What an epoll event is about; with a slot number it makes the event's tag.
enum class Source : uint8_t {
  kAgent,
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
};

struct State {
  State(ScopedFd agent_socket, std::string supervisor_id, CgroupTree tree)
      : id(std::move(supervisor_id)),
        agent(std::move(agent_socket)),
        outbox(agent.get()),
        cgroups(std::move(tree)) {}

  std::string id;
  ScopedFd agent;
  Outbox outbox;
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

  // epoll registration. The slot of the agent's socket and of signals is 0.
  void Watch(int fd, Source source, uint64_t slot, uint32_t events) const;
  void Rewatch(int fd, Source source, uint64_t slot, uint32_t events) const;
  void Unwatch(int fd) const;
};

// A worker's stream, closed and out of epoll.
void CloseStream(State& state, CapturedStream& stream);

}  // namespace cadre

#endif  // CADRE_AGENT_SUPERVISOR_STATE_H_
