// The link of a launcher whose launch has a board (LaunchBoard): where it finds no server, what the
// board says stands for that server's answer.
#ifndef CADRE_LAUNCHER_ATTACH_LAUNCH_LINK_H_
#define CADRE_LAUNCHER_ATTACH_LAUNCH_LINK_H_

#include <functional>
#include <memory>
#include <string>

#include "agent/link/server_link.h"
#include "launcher/environment/launch_board.h"

namespace cadre::launcher {

struct LaunchLinkOptions {
  // This launcher's.
  std::string node;
  std::string job;
  // One of the launch's own nodes is to serve, and says so on the board where it cannot.
  bool launch_serves = false;
  // A line for the user, who hears of the end, of a launch or of its hope, but once.
  std::function<void(const std::string&)> say;
};

// `link`, and where that finds no server the agent is told the verdict of the launch that has
// ended, as its server would have told it; or one that says why there is no server.
std::unique_ptr<agent::ServerLink> MakeLaunchLink(std::unique_ptr<agent::ServerLink> link,
                                                  LaunchBoard board, LaunchLinkOptions options);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_ATTACH_LAUNCH_LINK_H_
