// A group of processes of which there may be no more than so many: a cgroup of the pids controller.
// One thread.
#ifndef CADRE_TESTS_TESTING_PROCESS_LIMIT_H_
#define CADRE_TESTS_TESTING_PROCESS_LIMIT_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace cadre {

class ProcessLimit {
 public:
  // FAILED_PRECONDITION: this machine, or who runs the test, has no such cgroup; a test says so and
  // is skipped.
  static absl::StatusOr<std::unique_ptr<ProcessLimit>> Make();
  // Kills what is left.
  ~ProcessLimit();
  ProcessLimit(const ProcessLimit&) = delete;
  ProcessLimit& operator=(const ProcessLimit&) = delete;

  // What goes before a command that runs in it, with all that it starts.
  std::vector<std::string> Inside() const;
  void Set(int processes) const;
  void SetUnlimited() const;
  // Processes and threads that are there.
  int Count() const;
  bool AwaitEmpty(absl::Duration timeout) const;

 private:
  explicit ProcessLimit(std::string path) : path_(std::move(path)) {}

  const std::string path_;
};

}  // namespace cadre

#endif  // CADRE_TESTS_TESTING_PROCESS_LIMIT_H_
