#include "tests/testing/freezer.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"

namespace cadre {
namespace {

constexpr char kUsualPlace[] = "/sys/fs/cgroup/freezer";
constexpr absl::Duration kPatience = absl::Seconds(20);

absl::Status Write(const std::string& path, const std::string& text) {
  const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  const bool written =
      fd >= 0 && write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int error = errno;
  if (fd >= 0) close(fd);
  return written ? absl::OkStatus() : absl::ErrnoToStatus(error, absl::StrCat("writing ", path));
}

std::string StateOf(const std::string& cgroup) {
  std::string state;
  std::ifstream(cgroup + "/freezer.state") >> state;
  return state;
}

// Children of the hierarchy's root have this file.
bool IsFreezer(const std::string& cgroup) {
  return access((cgroup + "/freezer.state").c_str(), W_OK) == 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Freezer>> Freezer::Make() {
  const std::string name = absl::StrCat("/cadre-test-", getpid());
  const std::string usual = kUsualPlace + name;
  if (mkdir(usual.c_str(), 0755) == 0) {
    if (IsFreezer(usual)) return std::unique_ptr<Freezer>(new Freezer(usual, ""));
    rmdir(usual.c_str());
  }
  std::string root = "/tmp/cadre_freezer_XXXXXX";
  if (mkdtemp(root.data()) == nullptr) return absl::ErrnoToStatus(errno, "mkdtemp");
  if (mount("cgroup", root.c_str(), "cgroup", 0, "freezer") != 0) {
    const int error = errno;
    rmdir(root.c_str());
    return absl::FailedPreconditionError(
        absl::StrCat("no freezer of cgroup v1: mount: ", absl::ErrnoToStatus(error, "").message()));
  }
  std::unique_ptr<Freezer> freezer(new Freezer(root + name, root));
  if (mkdir(freezer->path_.c_str(), 0755) == 0 && IsFreezer(freezer->path_)) return freezer;
  return absl::FailedPreconditionError(absl::StrCat("no freezer of cgroup v1 at ", root));
}

Freezer::~Freezer() {
  Thaw().IgnoreError();
  // What was frozen goes back to the root, so that the cgroup can go.
  const std::string root = path_.substr(0, path_.rfind('/'));
  std::ifstream processes(path_ + "/cgroup.procs");
  for (std::string pid; processes >> pid;) Write(root + "/cgroup.procs", pid).IgnoreError();
  rmdir(path_.c_str());
  if (mounted_.empty()) return;
  umount2(mounted_.c_str(), MNT_DETACH);
  rmdir(mounted_.c_str());
}

absl::Status Freezer::Freeze(pid_t pid) {
  absl::Status status = Write(path_ + "/cgroup.procs", absl::StrCat(pid));
  if (status.ok()) status = Write(path_ + "/freezer.state", "FROZEN");
  const MonoTime end = MonoNow() + kPatience;
  // Reading is what brings the state up to date; nothing tells when it changes.
  while (status.ok() && StateOf(path_) != "FROZEN") {
    if (MonoNow() > end) return absl::DeadlineExceededError(absl::StrCat(pid, " does not freeze"));
    sched_yield();
  }
  return status;
}

absl::Status Freezer::Thaw() { return Write(path_ + "/freezer.state", "THAWED"); }

}  // namespace cadre
