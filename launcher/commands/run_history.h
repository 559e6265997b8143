// What is known of a run while it goes on, in the files of its log directory: a launcher that is
// killed leaves no verdict, and the agent that writes a timeline then does not come to that.
// Bounded as the server's own history is.
//
//   history.json   the timeline so far; gone once there is a verdict, with which the agent writes
//   timeline.json usage.json     how busy the nodes were
#ifndef CADRE_LAUNCHER_COMMANDS_RUN_HISTORY_H_
#define CADRE_LAUNCHER_COMMANDS_RUN_HISTORY_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/threads/file_thread.h"
#include "base/threads/repeating_thread.h"
#include "rendezvous/host/core_thread.h"

namespace cadre::launcher {

inline constexpr absl::Duration kHistoryInterval = absl::Seconds(15);

class RunHistory {
 public:
  using Serving = std::function<absl::StatusOr<std::shared_ptr<host::CoreThread>>()>;

  // `serving`: who knows of the job. What cannot be written is not kept.
  RunHistory(std::string log_dir, std::string job, Serving serving,
             absl::Duration interval = kHistoryInterval);
  // Writes the last of it, unless the file system does not answer.
  ~RunHistory();

 private:
  void Write();

  const std::string log_dir_;
  const std::string job_;
  const Serving serving_;
  FileThread files_{{}};
  std::optional<RepeatingThread> thread_;
};

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_COMMANDS_RUN_HISTORY_H_
