#include "agent/supervisor/processes/cgroups.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/supervisor/processes/cgroup_limits.h"
#include "agent/supervisor/processes/kernel_files.h"
#include "base/check.h"

namespace cadre::supervisor {
namespace {

bool IsCgroup2(const char* path) {
  struct statfs fs;
  return statfs(path, &fs) == 0 && fs.f_type == CGROUP2_SUPER_MAGIC;
}

}  // namespace

std::string CgroupMount() {
  for (const char* path : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
    if (IsCgroup2(path)) return path;
  }
  return "";
}

std::string PathIn(absl::string_view own_cgroups, absl::string_view controller) {
  for (absl::string_view line : absl::StrSplit(own_cgroups, '\n', absl::SkipEmpty())) {
    const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const std::vector<absl::string_view> controllers = absl::StrSplit(parts[1], ',');
    if (std::find(controllers.begin(), controllers.end(), controller) == controllers.end()) {
      continue;
    }
    return parts[2] == "/" ? "" : std::string(parts[2]);
  }
  return "";
}

namespace {

constexpr char kPrefix[] = "cadre-";

ScopedFd OpenDirectory(const std::string& path) {
  return ScopedFd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

// Whether the supervisor that made `path` is dead. Its pid may belong to another pid namespace, so
// only a free lock is proof; the pid covers the moment before the lock is taken.
bool OwnerIsDead(const std::string& path, absl::string_view name) {
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '-');
  pid_t pid = 0;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[1], &pid) || pid <= 0) return false;
  if (kill(pid, 0) == 0 || errno != ESRCH) return false;
  ScopedFd fd = OpenDirectory(path);
  return fd.ok() && flock(fd.get(), LOCK_EX | LOCK_NB) == 0;
}

}  // namespace

CgroupTree CgroupTree::None(std::string why) {
  CgroupTree tree;
  tree.degraded_ = std::move(why);
  tree.FindMemoryCounter(KernelFileText("/proc/self/cgroup"));
  return tree;
}

CgroupTree CgroupTree::Open(const std::string& id) {
  const std::string mount = CgroupMount();
  if (mount.empty()) return None("no cgroup v2 is mounted");
  const std::string own = KernelFileText("/proc/self/cgroup");
  const std::string parent = absl::StrCat(mount, PathIn(own, ""));
  const std::string root = absl::StrCat(parent, "/", kPrefix, getpid(), "-", id);
  if (mkdir(root.c_str(), 0755) != 0) {
    return None(absl::StrCat("cannot make a cgroup in ", parent, ": ", strerror(errno)));
  }
  CgroupTree tree;
  tree.lock_ = OpenDirectory(root);
  if (!tree.lock_.ok() || flock(tree.lock_.get(), LOCK_EX | LOCK_NB) != 0 ||
      access(absl::StrCat(root, "/cgroup.kill").c_str(), W_OK) != 0) {
    rmdir(root.c_str());
    return None(
        absl::StrCat("cgroups in ", parent, " have no cgroup.kill; Linux 5.14 or newer is needed"));
  }
  tree.root_ = root;
  tree.parent_ = parent;
  tree.memory_per_group_ = EnableForChildren("memory", root).empty();
  tree.FindMemoryCounter(own);
  tree.RemoveDeadTrees(parent);
  return tree;
}

void CgroupTree::FindMemoryCounter(absl::string_view own_cgroups) {
  own_memory_ = absl::StrCat(CgroupMount(), PathIn(own_cgroups, ""));
  const std::string v2 = own_memory_ + "/memory.events";
  const std::string v1 =
      absl::StrCat("/sys/fs/cgroup/memory", PathIn(own_cgroups, "memory"), "/memory.oom_control");
  for (const std::string& path : {v2, v1, std::string("/proc/vmstat")}) {
    shared_memory_counter_ = path;
    if (access(path.c_str(), R_OK) == 0) return;
  }
}

void CgroupTree::RemoveDeadTrees(const std::string& parent) {
  for (const std::string& name : Subdirectories(parent)) {
    if (name.compare(0, sizeof(kPrefix) - 1, kPrefix) != 0) continue;
    const std::string path = absl::StrCat(parent, "/", name);
    if (path == root_ || !OwnerIsDead(path, name)) continue;
    KillCgroup(path);
    if (!RemoveCgroup(path)) to_remove_.push_back(path);
  }
}

std::string CgroupTree::PathOf(uint64_t serial) const {
  CADRE_CHECK(usable(), "group ", serial, " has no cgroup: ", degraded_);
  return absl::StrCat(root_, "/g", serial);
}

ScopedFd CgroupTree::Add(uint64_t serial) {
  if (!usable()) return ScopedFd();
  const std::string path = PathOf(serial);
  if (mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) return ScopedFd();
  return OpenDirectory(path);
}

std::vector<std::string> CgroupTree::SetLimits(uint64_t serial, const Containment& containment) {
  if (!usable()) return {absl::StrCat("the limits of jobs cannot be set: ", degraded_)};
  // Only on request, because processes may have to be moved for it.
  const std::string memory = EnableController("memory", parent_, root_);
  const std::string pids = EnableController("pids", parent_, root_);
  // From now on each group has its own counter.
  if (memory.empty()) memory_per_group_ = true;
  Containment possible = containment;
  std::vector<std::string> undone;
  if (possible.memory_bytes != 0 && !memory.empty()) {
    possible.memory_bytes = 0;
    undone.push_back(absl::StrCat(kNoMemoryLimit, memory));
  }
  if (possible.max_pids != 0 && !pids.empty()) {
    possible.max_pids = 0;
    undone.push_back(absl::StrCat(kNoProcessLimit, pids));
  }
  for (std::string& line : LimitCgroup(PathOf(serial), possible)) {
    undone.push_back(std::move(line));
  }
  return undone;
}

ScopedFd CgroupTree::Watch(uint64_t serial) const {
  if (!usable()) return ScopedFd();
  return ScopedFd(open((PathOf(serial) + "/cgroup.events").c_str(), O_RDONLY | O_CLOEXEC));
}

bool CgroupTree::Populated(const ScopedFd& events) {
  char text[256];
  const ssize_t n = events.ok() ? pread(events.get(), text, sizeof(text), 0) : 0;
  if (n <= 0) return false;
  return ValueOf(absl::string_view(text, static_cast<size_t>(n)), "populated").value_or(0) != 0;
}

std::vector<int> CgroupTree::Processes(uint64_t serial) const {
  if (!usable()) return {};
  return CgroupProcesses(PathOf(serial));
}

void CgroupTree::Kill(uint64_t serial) const {
  if (usable()) KillCgroup(PathOf(serial));
}

void CgroupTree::KillAll() const {
  if (usable()) KillCgroup(root_);
}

uint64_t CgroupTree::OutOfMemoryKills(uint64_t serial) const {
  const std::string path =
      memory_per_group_ ? PathOf(serial) + "/memory.events" : shared_memory_counter_;
  return ValueOf(KernelFileText(path), "oom_kill").value_or(0);
}

uint64_t CgroupTree::LimitReached() const {
  return ValueOf(KernelFileText(own_memory_ + "/memory.events.local"), "oom").value_or(0);
}

uint64_t CgroupTree::MemoryLimit() const {
  uint64_t limit = 0;
  // The file contains "max" if there is no limit.
  const std::string text = KernelFileText(own_memory_ + "/memory.max");
  return absl::SimpleAtoi(text, &limit) ? limit : 0;
}

void CgroupTree::Remove(uint64_t serial) {
  if (usable()) to_remove_.push_back(PathOf(serial));
  to_remove_.erase(std::remove_if(to_remove_.begin(), to_remove_.end(), RemoveCgroup),
                   to_remove_.end());
}

bool CgroupTree::RemoveAll() {
  to_remove_.erase(std::remove_if(to_remove_.begin(), to_remove_.end(), RemoveCgroup),
                   to_remove_.end());
  return (!usable() || RemoveCgroup(root_)) && to_remove_.empty();
}

bool KillCgroup(const std::string& path) {
  ScopedFd fd(open(absl::StrCat(path, "/cgroup.kill").c_str(), O_WRONLY | O_CLOEXEC));
  return fd.ok() && write(fd.get(), "1", 1) == 1;
}

std::vector<pid_t> CgroupProcesses(const std::string& path) {
  std::vector<pid_t> pids;
  const std::string text = KernelFileText(absl::StrCat(path, "/cgroup.procs"));
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    pid_t pid = 0;
    if (absl::SimpleAtoi(line, &pid)) pids.push_back(pid);
  }
  for (const std::string& name : Subdirectories(path)) {
    const std::vector<pid_t> below = CgroupProcesses(absl::StrCat(path, "/", name));
    pids.insert(pids.end(), below.begin(), below.end());
  }
  return pids;
}

bool RemoveCgroup(const std::string& path) {
  if (rmdir(path.c_str()) == 0 || errno == ENOENT) return true;
  for (const std::string& name : Subdirectories(path)) RemoveCgroup(absl::StrCat(path, "/", name));
  return rmdir(path.c_str()) == 0 || errno == ENOENT;
}

}  // namespace cadre::supervisor
