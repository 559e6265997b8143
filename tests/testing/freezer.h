// Holds a process in the kernel, where SIGKILL does not end it, as a file system that does not
// answer would: in the freezer of cgroup v1. One thread.
#ifndef CADRE_TESTS_TESTING_FREEZER_H_
#define CADRE_TESTS_TESTING_FREEZER_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace cadre {

class Freezer {
 public:
  // Mounts the hierarchy where it is not mounted. FAILED_PRECONDITION: this machine, or who runs
  // the test, has no such freezer; a test says so and is skipped.
  static absl::StatusOr<std::unique_ptr<Freezer>> Make();
  // Thaws.
  ~Freezer();
  Freezer(const Freezer&) = delete;
  Freezer& operator=(const Freezer&) = delete;

  // Returns once the process with all its threads is frozen.
  absl::Status Freeze(pid_t pid);
  absl::Status Thaw();

 private:
  Freezer(std::string path, std::string mounted)
      : path_(std::move(path)), mounted_(std::move(mounted)) {}

  const std::string path_;     // of the cgroup
  const std::string mounted_;  // where this object has mounted the hierarchy; empty: nowhere
};

}  // namespace cadre

#endif  // CADRE_TESTS_TESTING_FREEZER_H_
