// If srun or mpirun starts several launchers on a node, the first one runs the workers; the others
// wait for it and exit as it does. They use a unix socket in RuntimeDirectory().
#ifndef CADRE_LAUNCHER_ENVIRONMENT_FIRST_TASK_H_
#define CADRE_LAUNCHER_ENVIRONMENT_FIRST_TASK_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace cadre::launcher {

// The first task's side. The kernel holds the others' connections and closes them when this process
// dies.
class FirstTask {
 public:
  // `name` names the launch and the node, and is the same in each of its tasks.
  static absl::StatusOr<std::unique_ptr<FirstTask>> Open(const std::string& name);
  ~FirstTask();
  FirstTask(const FirstTask&) = delete;
  FirstTask& operator=(const FirstTask&) = delete;

  // Sends `others` tasks the exit status; waits for `timeout` for those that have not connected
  // yet. A second call does nothing.
  void End(int status, uint32_t others, absl::Duration timeout = absl::Seconds(5));

 private:
  FirstTask(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  const std::string path_;
  int fd_;
};

// Blocks until the first task ends, and returns its exit status. UNAVAILABLE: it does not start
// within `timeout`, or dies without reporting a status.
absl::StatusOr<int> FollowFirstTask(const std::string& name,
                                    absl::Duration timeout = absl::Minutes(1));

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_ENVIRONMENT_FIRST_TASK_H_
