// What the launchers of one srun or mpirun tell each other before they are connected: how many
// tasks each node has, where the one that serves is, or why it cannot. They are small files in the
// user's home directory, which the nodes share (HomeDirectory()). One thread each; calls block.
#ifndef CADRE_LAUNCHER_ENVIRONMENT_LAUNCH_BOARD_H_
#define CADRE_LAUNCHER_ENVIRONMENT_LAUNCH_BOARD_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace cadre::launcher {

class LaunchBoard {
 public:
  // `launch` as Identity has it. Errors: there is no home directory to share.
  static absl::StatusOr<LaunchBoard> Open(const std::string& launch);

  struct Node {
    // The first of its tasks, among those of all nodes.
    uint32_t task = 0;
    uint32_t tasks = 1;
    std::string name;
  };
  // Says what `own` node has, and waits until all have done so: their tasks make `tasks`. In the
  // order of their first tasks. INVALID_ARGUMENT: they make more; DEADLINE_EXCEEDED: not all came.
  absl::StatusOr<std::vector<Node>> Meet(const Node& own, uint32_t tasks,
                                         absl::Duration patience) const;

  // By the node that is to serve: where it does, as host:port; or why it cannot.
  absl::Status Serves(absl::string_view at) const;
  void Fails(absl::string_view why) const;

  // By all others: where that is. UNAVAILABLE: why it cannot serve; DEADLINE_EXCEEDED: it says
  // neither. `slow` is called once where that takes longer than a start usually does.
  absl::StatusOr<std::string> AwaitServer(absl::Duration patience,
                                          const std::function<void()>& slow) const;

  // By the node that served, at the end.
  void Remove() const;

  // Where it is, for people.
  std::string Where() const { return directory_ + "/" + launch_ + ".*"; }

 private:
  LaunchBoard(std::string directory, std::string launch)
      : directory_(std::move(directory)), launch_(std::move(launch)) {}
  absl::Status Write(const std::string& name, absl::string_view text) const;
  std::vector<std::pair<std::string, std::string>> Read(absl::string_view prefix) const;

  const std::string directory_;
  const std::string launch_;
};

// What an mpirun calls its job, asked in PMI's protocol (version 1) at the descriptor that it gave
// this process. Others may not ask there at the same time. UNAVAILABLE: it does not answer so.
absl::StatusOr<std::string> AskPmiForJob(int fd, absl::Duration patience = absl::Seconds(10));

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_ENVIRONMENT_LAUNCH_BOARD_H_
