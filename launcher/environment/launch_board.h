// What the launchers of one srun or mpirun tell each other while they are not connected: at the
// start how many tasks each node has, where the one that serves is, or why it cannot; at the end
// how the launch ended. They are small files in the user's home directory, which the nodes mostly
// share (HomeDirectory()). One thread each; calls block.
#ifndef CADRE_LAUNCHER_ENVIRONMENT_LAUNCH_BOARD_H_
#define CADRE_LAUNCHER_ENVIRONMENT_LAUNCH_BOARD_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/job.pb.h"

namespace cadre::launcher {

// Until then an end is believed. After that nobody comes any more, and an MPI launcher may give the
// launch's name again.
inline constexpr absl::Duration kLaunchEndKept = absl::Hours(1);

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

  // By all others: where that is. UNAVAILABLE: why it cannot serve; NOT_FOUND: the launch has ended
  // (End()), and `node` has taken no part in it; DEADLINE_EXCEEDED: none of these. `slow` is called
  // once where that takes longer than a start usually does.
  absl::StatusOr<std::string> AwaitServer(absl::Duration patience, const std::string& node,
                                          const std::function<void()>& slow) const;

  // Why the node that is to serve cannot, in this run of the launch; OK: it has not said so. Once
  // `node` has taken part, or has heard that, it is of an earlier run.
  absl::Status Failure(const std::string& node) const;

  // By the node that served: how the launch ended, for those who find nobody serving any more. They
  // come too late, or had been cut off.
  absl::Status Ended(const v1::Verdict& verdict) const;
  // NOT_FOUND: it has not, as far as is known here, or that is kLaunchEndKept ago.
  absl::StatusOr<v1::Verdict> End() const;

  // A script may call `cadre run` several times in one launch: whoever took part in a run of it
  // does not come too late for that one, but in time for the next.
  void NoteTakenPart(const std::string& node) const;
  bool HasTakenPart(const std::string& node) const;

  // By the node that serves: takes back what an earlier run said of its end, or of why it cannot;
  // another launch may have had the name, too.
  void BeginAnew() const;
  // At the end: all but how the launch ended, and who took part.
  void Remove() const;

  // A token that the launch shares.
  std::string TokenFile() const { return PathOf("token"); }
  // Where it is, for people.
  std::string Where() const { return directory_ + "/" + launch_ + ".*"; }

 private:
  LaunchBoard(std::string directory, std::string launch)
      : directory_(std::move(directory)), launch_(std::move(launch)) {}
  std::string PathOf(absl::string_view name) const {
    return absl::StrCat(directory_, "/", launch_, ".", name);
  }
  absl::Status Write(const std::string& name, absl::string_view text) const;
  std::vector<std::pair<std::string, std::string>> Read(absl::string_view prefix) const;

  std::string directory_;
  std::string launch_;
};

// What an mpirun calls its job, asked in PMI's protocol (version 1) at the descriptor that it gave
// this process. Others may not ask there at the same time. UNAVAILABLE: it does not answer so.
absl::StatusOr<std::string> AskPmiForJob(int fd, absl::Duration patience = absl::Seconds(10));

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_ENVIRONMENT_LAUNCH_BOARD_H_
