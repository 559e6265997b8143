// Where srun or mpirun starts several launchers on a node, the first one runs the workers; the
// others wait for it and end as it does. They meet at a unix socket in RuntimeDirectory().
#ifndef CADRE_LAUNCHER_ENVIRONMENT_FIRST_TASK_H_
#define CADRE_LAUNCHER_ENVIRONMENT_FIRST_TASK_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace cadre::launcher {

// The first task's end. The kernel keeps the others' connections; when this process dies, it ends
// them.
class FirstTask {
 public:
  // `name` is that of the launch and the node, the same in each of its tasks.
  static absl::StatusOr<std::unique_ptr<FirstTask>> Open(const std::string& name);
  ~FirstTask();
  FirstTask(const FirstTask&) = delete;
  FirstTask& operator=(const FirstTask&) = delete;

  // Tells `others` tasks the exit status; waits `patience` for those that have not come yet. The
  // second call does nothing.
  void End(int status, uint32_t others, absl::Duration patience = absl::Seconds(5));

 private:
  FirstTask(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  const std::string path_;
  int fd_;
};

// Blocks until the first task ends; its exit status. UNAVAILABLE: it does not come within
// `patience`, or it dies without having said how it ends.
absl::StatusOr<int> FollowFirstTask(const std::string& name,
                                    absl::Duration patience = absl::Minutes(1));

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_ENVIRONMENT_FIRST_TASK_H_
