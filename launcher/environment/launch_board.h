// Facts that the launchers of one srun or mpirun exchange while they are not connected: at the
// start how many tasks each node has, where the server is, or why there is none; at the end how the
// launch ended. They are small files in the user's home directory, which most nodes share
// (HomeDirectory()). Use each object on one thread; calls block.
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

// How long the recorded end of a launch is valid. Launchers do not come later than that, and an MPI
// launcher may give another launch the same name.
inline constexpr absl::Duration kLaunchEndKept = absl::Hours(1);

class LaunchBoard {
 public:
  // `launch` as in Identity. Fails if there is no home directory to share.
  static absl::StatusOr<LaunchBoard> Open(const std::string& launch);

  struct Node {
    // The index of its first task among the tasks of all nodes.
    uint32_t task = 0;
    uint32_t tasks = 1;
    std::string name;
  };
  // Publishes `own` and waits until all nodes have published theirs, whose tasks sum to `tasks`.
  // Returns them in the order of their first tasks. INVALID_ARGUMENT: the sum is larger;
  // DEADLINE_EXCEEDED: nodes are missing.
  absl::StatusOr<std::vector<Node>> GatherNodes(const Node& own, uint32_t tasks,
                                                absl::Duration timeout) const;

  // Called by the node that is to serve: publishes where it serves, as host:port, or why it cannot.
  absl::Status PublishAddress(absl::string_view at) const;
  void PublishFailure(absl::string_view why) const;

  // Called by all other nodes: waits for the server's address. UNAVAILABLE: the reason why it
  // cannot serve; NOT_FOUND: the launch has ended (ReadEnd()) and `node` took no part in it;
  // DEADLINE_EXCEEDED: nothing is known in time. `slow` is called once if that takes longer than a
  // usual start.
  absl::StatusOr<std::string> AwaitServer(absl::Duration timeout, const std::string& node,
                                          const std::function<void()>& slow) const;

  // Why the node that is to serve cannot, in this run of the launch; OK: it has published no
  // reason. Once `node` has taken part in a run or has read the reason, it counts as that of an
  // earlier run.
  absl::Status Failure(const std::string& node) const;

  // Called by the node that served: records how the launch ended, for launchers that find no server
  // because they come too late or were disconnected.
  absl::Status RecordEnd(const v1::Verdict& verdict) const;
  // NOT_FOUND: this node sees no end of the launch, or it is older than kLaunchEndKept.
  absl::StatusOr<v1::Verdict> ReadEnd() const;

  // A script may call `cadre run` several times in one launch. A node that took part in the run
  // that ended is not late for that run, but early for the next.
  void NoteTakenPart(const std::string& node) const;
  bool HasTakenPart(const std::string& node) const;

  // Called by the node that serves: removes what an earlier run, or another launch of the same
  // name, recorded about its end or about why it could not serve.
  void ForgetEarlierRun() const;
  // Called at the end: removes everything except how the launch ended and which nodes took part.
  void Remove() const;

  // The file with the token that the launch's nodes share.
  std::string TokenFile() const { return PathOf("token"); }
  // The place of the files, for messages.
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

// An mpirun's name of its job, requested with PMI's protocol (version 1) at the descriptor that it
// gave this process. Only one process may use that at a time. UNAVAILABLE: it gives no such answer.
absl::StatusOr<std::string> AskPmiForJob(int fd, absl::Duration timeout = absl::Seconds(10));

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_ENVIRONMENT_LAUNCH_BOARD_H_
