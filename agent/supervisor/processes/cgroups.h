// Cgroups v2: where they can be made, one directory with all below it, and the supervisor's own
// tree with a cgroup for each group.
#ifndef CADRE_AGENT_SUPERVISOR_PROCESSES_CGROUPS_H_
#define CADRE_AGENT_SUPERVISOR_PROCESSES_CGROUPS_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "agent/supervisor/frames.h"
#include "base/scoped_fd.h"

namespace cadre::supervisor {

// Where cgroup v2 is mounted, alone or beside v1 (hybrid). Empty: it is not mounted.
std::string CgroupMount();

// The path in the hierarchy whose line in a /proc/PID/cgroup file names `controller`; "" means
// cgroup v2. Empty for the root. Pure.
std::string PathIn(absl::string_view cgroups, absl::string_view controller);

// These work on one cgroup v2 directory and all below it. They are stateless: the supervisor uses
// them on its own tree, and an agent on the tree of a supervisor that died. Any thread.

// Sends SIGKILL to every process at and below `path`, including ones being forked. Returns false if
// there is no such cgroup.
bool KillCgroup(const std::string& path);

// The processes at and below `path`.
std::vector<pid_t> CgroupProcesses(const std::string& path);

// Removes `path` and the cgroups below it. Returns true if nothing is left; false if the kernel
// still holds one (EBUSY), so that the caller must try again later.
bool RemoveCgroup(const std::string& path);

// The supervisor's own cgroups: cadre-<pid>-<id>/g<serial> for each group, below the cgroup that it
// runs in. Works with a pure cgroup v2 mount and with the hybrid one. Supervisor's thread only.
class CgroupTree {
 public:
  // Makes the tree's root, and kills and removes the trees of dead supervisors. Never fails: if
  // cgroups cannot be used, usable() is false and degraded() returns the reason.
  static CgroupTree Open(const std::string& id);
  // A disabled tree.
  static CgroupTree None(std::string why);

  bool usable() const { return !root_.empty(); }
  const std::string& root() const { return root_; }
  const std::string& degraded() const { return degraded_; }

  // Makes a group's cgroup, named by its serial number (groups.h), and returns its directory, to
  // clone into; not ok() if it cannot be made.
  ScopedFd Add(uint64_t serial);
  // Sets the limits of a new cgroup. Returns a line for each limit that cannot be set.
  std::vector<std::string> SetLimits(uint64_t serial, const Containment& containment);
  // Opens its cgroup.events; epoll reports EPOLLPRI when it changes.
  ScopedFd Watch(uint64_t serial) const;
  // Whether a process is left, according to that file.
  static bool Populated(const ScopedFd& events);
  std::vector<int> Processes(uint64_t serial) const;
  void Kill(uint64_t serial) const;
  void KillAll() const;

  // The total number of OOM kills in this group. Counted per group if we can use the memory
  // controller; else for the cgroup that all groups share.
  uint64_t OutOfMemoryKills(uint64_t serial) const;

  // How often the cgroup that all groups share has reached its own memory limit, so that the kernel
  // killed there. Also 0 if that is not known.
  uint64_t LimitReached() const;
  // That limit; 0: none is set.
  uint64_t MemoryLimit() const;

  // Removes the group's empty cgroups; those that the kernel still holds are tried again at the
  // next call.
  void Remove(uint64_t serial);
  // Returns true if the whole tree is gone.
  bool RemoveAll();

 private:
  std::string PathOf(uint64_t serial) const;
  void FindMemoryCounter(absl::string_view own_cgroups);
  void RemoveDeadTrees(const std::string& parent);

  std::string root_;
  std::string parent_;
  std::string degraded_;
  ScopedFd lock_;  // held on root_: shows other supervisors that this one lives
  bool memory_per_group_ = false;
  std::string shared_memory_counter_;
  std::string own_memory_;  // the cgroup that all groups share
  std::vector<std::string> to_remove_;
};

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_PROCESSES_CGROUPS_H_
