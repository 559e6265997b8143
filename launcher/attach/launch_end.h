// How a launch ended, for those of its launchers that find nobody serving any more: they came too
// late, or had been cut off. Who served leaves it beside the token that the launch shares
// (attach.h), and nobody runs again what has ended.
#ifndef CADRE_LAUNCHER_ATTACH_LAUNCH_END_H_
#define CADRE_LAUNCHER_ATTACH_LAUNCH_END_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/link/server_link.h"
#include "proto/job.pb.h"

namespace cadre::launcher {

// After that nobody comes any more, and an MPI launcher may give the launch's name again.
inline constexpr absl::Duration kLaunchEndKept = absl::Hours(1);

// `token_file`: the launch's. Removes what launches have left there longer than kLaunchEndKept ago.
absl::Status LeaveLaunchEnd(const std::string& token_file, const v1::Verdict& verdict);

// For who begins to serve: another launch may have had the name.
void RemoveLaunchEnd(const std::string& token_file);

// NOT_FOUND: it has left none, or that is kLaunchEndKept ago.
absl::StatusOr<v1::Verdict> FindLaunchEnd(const std::string& token_file);

// A script may call `cadre run` several times in one launch: whoever took part in a run of it does
// not come too late for that one, but in time for the next. Of each node, beside the token.
void NoteTakenPart(const std::string& token_file, const std::string& node);
bool HasTakenPart(const std::string& token_file, const std::string& node);

// `link`, and where that finds no server and the launch has ended, the agent hears the verdict as
// that server would have told it. Says so once.
std::unique_ptr<agent::ServerLink> MakeLaunchLink(std::unique_ptr<agent::ServerLink> link,
                                                  const std::string& token_file,
                                                  std::function<void(const std::string&)> say);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_ATTACH_LAUNCH_END_H_
