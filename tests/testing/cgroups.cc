#include "tests/testing/cgroups.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "gtest/gtest.h"
#include "tests/testing/process.h"

namespace cadre {
namespace {

constexpr char kUsualPlace[] = "/sys/fs/cgroup/freezer";
constexpr absl::Duration kTimeout = absl::Seconds(20);

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

// Only children of the hierarchy's root have this file.
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
  // The processes move back to the root, so that the cgroup can be removed.
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
  const MonoTime end = MonoNow() + kTimeout;
  // Reading updates the state; there is no notification of its change.
  while (status.ok() && StateOf(path_) != "FROZEN") {
    if (MonoNow() > end) return absl::DeadlineExceededError(absl::StrCat(pid, " does not freeze"));
    sched_yield();
  }
  return status;
}

absl::Status Freezer::Thaw() { return Write(path_ + "/freezer.state", "THAWED"); }

namespace {

constexpr absl::Duration kLook = absl::Milliseconds(5);

void WriteOrFail(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text << std::flush;
  EXPECT_TRUE(file.good()) << path << ": " << text;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProcessLimit>> ProcessLimit::Make() {
  for (const char* parent : {"/sys/fs/cgroup/pids", "/sys/fs/cgroup"}) {
    std::string path = absl::StrCat(parent, "/cadre_test_XXXXXX");
    if (mkdtemp(path.data()) == nullptr) continue;
    if (access((path + "/pids.max").c_str(), W_OK) == 0) {
      return std::unique_ptr<ProcessLimit>(new ProcessLimit(std::move(path)));
    }
    rmdir(path.c_str());
  }
  return absl::FailedPreconditionError("no cgroup that limits processes can be made here");
}

ProcessLimit::~ProcessLimit() {
  const absl::Time until = absl::Now() + absl::Seconds(20);
  while (rmdir(path_.c_str()) != 0 && errno == EBUSY && absl::Now() < until) {
    std::ifstream left(path_ + "/cgroup.procs");
    for (pid_t pid = 0; left >> pid;) kill(pid, SIGKILL);
    absl::SleepFor(kLook);
  }
}

std::vector<std::string> ProcessLimit::Inside() const {
  return {"/bin/sh", "-c", absl::StrCat("echo $$ >", path_, "/cgroup.procs && exec \"$@\""), "sh"};
}

void ProcessLimit::Set(int processes) const {
  WriteOrFail(path_ + "/pids.max", absl::StrCat(processes));
}
void ProcessLimit::SetUnlimited() const { WriteOrFail(path_ + "/pids.max", "max"); }

int ProcessLimit::Count() const { return atoi(ReadFileOrEmpty(path_ + "/pids.current").c_str()); }

bool ProcessLimit::AwaitEmpty(absl::Duration timeout) const {
  const absl::Time until = absl::Now() + timeout;
  while (Count() != 0) {
    if (absl::Now() > until) return false;
    absl::SleepFor(kLook);
  }
  return true;
}

}  // namespace cadre
