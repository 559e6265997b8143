// Cgroups for tests: one that limits the number of its processes, and one that freezes them. One
// thread uses an object.
#ifndef CADRE_TESTS_TESTING_CGROUPS_H_
#define CADRE_TESTS_TESTING_CGROUPS_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace cadre {

// Limits the number of processes in a group, with a cgroup of the pids controller.
class ProcessLimit {
 public:
  // Fails with FAILED_PRECONDITION if this machine or this user has no such cgroup; the test is
  // then skipped with a message.
  static absl::StatusOr<std::unique_ptr<ProcessLimit>> Make();
  // Kills the processes that are left.
  ~ProcessLimit();
  ProcessLimit(const ProcessLimit&) = delete;
  ProcessLimit& operator=(const ProcessLimit&) = delete;

  // Returns the command prefix that runs a command, with all its children, in the group.
  std::vector<std::string> Inside() const;
  void Set(int processes) const;
  void SetUnlimited() const;
  // Returns the number of processes and threads in the group.
  int Count() const;
  bool AwaitEmpty(absl::Duration timeout) const;

 private:
  explicit ProcessLimit(std::string path) : path_(std::move(path)) {}

  const std::string path_;
};

// Holds a process in the kernel, where SIGKILL does not end it, as a file system that does not
// answer would. It uses the freezer of cgroup v1.
class Freezer {
 public:
  // Mounts the hierarchy if it is not mounted. Fails with FAILED_PRECONDITION if this machine or
  // this user has no such freezer; the test is then skipped with a message.
  static absl::StatusOr<std::unique_ptr<Freezer>> Make();
  // Thaws the process.
  ~Freezer();
  Freezer(const Freezer&) = delete;
  Freezer& operator=(const Freezer&) = delete;

  // Returns once the process with all its threads is frozen.
  absl::Status Freeze(pid_t pid);
  absl::Status Thaw();

 private:
  Freezer(std::string path, std::string mounted)
      : path_(std::move(path)), mounted_(std::move(mounted)) {}

  const std::string path_;     // the cgroup's directory
  const std::string mounted_;  // the hierarchy's mount point if this object mounted it, else empty
};

}  // namespace cadre

#endif  // CADRE_TESTS_TESTING_CGROUPS_H_
