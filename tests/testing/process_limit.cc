#include "tests/testing/process_limit.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/testing/process.h"

namespace cadre {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(5);

void Write(const std::string& path, const std::string& text) {
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

void ProcessLimit::Set(int processes) const { Write(path_ + "/pids.max", absl::StrCat(processes)); }
void ProcessLimit::SetUnlimited() const { Write(path_ + "/pids.max", "max"); }

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
