// The supervisor's own cgroups: cadre-<pid>-<id>/g<serial> for each group, below the cgroup it
// runs in. Works with a pure cgroup v2 mount and with the hybrid one. Supervisor's thread only.
#ifndef CADRE_AGENT_SUPERVISOR_PROCESSES_CGROUP_TREE_H_
#define CADRE_AGENT_SUPERVISOR_PROCESSES_CGROUP_TREE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "agent/supervisor/frames.h"
#include "base/scoped_fd.h"

namespace cadre::supervisor {

class CgroupTree {
 public:
  // Makes the tree's root, and kills and removes the trees of supervisors that are dead. Never
  // fails: where there are no cgroups to be had, usable() is false and degraded() says why.
  static CgroupTree Open(const std::string& id);
  // A tree that is switched off.
  static CgroupTree None(std::string why);

  bool usable() const { return !root_.empty(); }
  const std::string& root() const { return root_; }
  const std::string& degraded() const { return degraded_; }

  // A group's cgroup is named by its serial number (state.h). The directory of a new one, to clone
  // into; not ok() when it cannot be made.
  ScopedFd Add(uint64_t serial);
  // Holds what will be in a new one to that. What cannot be done, a line each.
  std::vector<std::string> Contain(uint64_t serial, const Containment& containment);
  // Its cgroup.events; epoll reports EPOLLPRI when it changes.
  ScopedFd Watch(uint64_t serial) const;
  // Whether a process is left, from that file.
  static bool Populated(const ScopedFd& events);
  std::vector<int> Processes(uint64_t serial) const;
  void Kill(uint64_t serial) const;
  void KillAll() const;

  // How often the kernel killed a process of this group for want of memory, ever. Counted per
  // group where the memory controller is ours to use; else for the cgroup that all groups share.
  uint64_t OutOfMemoryKills(uint64_t serial) const;

  // How often the cgroup that all groups share was at its own limit, ever, so that the kernel
  // killed there. 0 as well where that is not known.
  uint64_t LimitReached() const;
  // That limit; 0: it has none.
  uint64_t MemoryLimit() const;

  // Removes what is empty; what the kernel still holds is tried again at the next call.
  void Remove(uint64_t serial);
  // True when all of the tree is gone.
  bool RemoveAll();

 private:
  std::string PathOf(uint64_t serial) const;
  void FindMemoryCounter(absl::string_view own_cgroups);
  void RemoveDeadTrees(const std::string& parent);

  std::string root_;
  std::string parent_;
  std::string degraded_;
  ScopedFd lock_;  // held on root_: tells later supervisors that this one lives
  bool memory_per_group_ = false;
  std::string shared_memory_counter_;
  std::string own_memory_;  // the cgroup that all groups share
  std::vector<std::string> to_remove_;
};

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_PROCESSES_CGROUP_TREE_H_
