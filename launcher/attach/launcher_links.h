// The links of an agent to its server that only a launcher has, beside the one over gRPC
// (agent/link/grpc_link.h).
#ifndef CADRE_LAUNCHER_ATTACH_LAUNCHER_LINKS_H_
#define CADRE_LAUNCHER_ATTACH_LAUNCHER_LINKS_H_

#include <functional>
#include <memory>
#include <string>

#include "agent/link/server_link.h"
#include "launcher/environment/launch_board.h"
#include "rendezvous/host/core_thread.h"

namespace cadre::launcher {

// The link to a server in the agent's own process, without a socket or gRPC. `core` must outlive
// it. Callbacks run on the core thread, on_up within Start.
std::unique_ptr<agent::ServerLink> MakeEmbeddedLink(host::CoreThread& core);

struct LaunchLinkOptions {
  // The names of this launcher's node and job.
  std::string node;
  std::string job;
  // Whether one of the launch's own nodes is to serve. If it cannot, it writes why on the board.
  bool launch_serves = false;
  // Prints a line for the user. That the launch has ended, or cannot start, is printed only once.
  std::function<void(const std::string&)> say;
};

// Wraps the link of a launcher whose launch (one srun or mpirun) has a board. While `link` finds no
// server, the board replaces the server's answer: the agent gets the verdict of the launch that has
// ended, as its server would have sent it, or a verdict that says why there is no server. Used by
// the link's thread.
std::unique_ptr<agent::ServerLink> MakeLaunchLink(std::unique_ptr<agent::ServerLink> link,
                                                  LaunchBoard board, LaunchLinkOptions options);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_ATTACH_LAUNCHER_LINKS_H_
