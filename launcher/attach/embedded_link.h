// The agent's link to a server in its own process: no socket, no gRPC.
#ifndef CADRE_LAUNCHER_ATTACH_EMBEDDED_LINK_H_
#define CADRE_LAUNCHER_ATTACH_EMBEDDED_LINK_H_

#include <memory>

#include "agent/link/server_link.h"
#include "rendezvous/host/core_thread.h"

namespace cadre::launcher {

// `core` must outlive it. Callbacks run on the core thread, on_up within Start.
std::unique_ptr<agent::ServerLink> MakeEmbeddedLink(host::CoreThread& core);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_ATTACH_EMBEDDED_LINK_H_
