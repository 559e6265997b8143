// One launcher's share of a job: this node's agent and, where it serves, the server.
#ifndef CADRE_LAUNCHER_COMMANDS_RUN_NODE_H_
#define CADRE_LAUNCHER_COMMANDS_RUN_NODE_H_

#include <cstdint>
#include <functional>
#include <optional>

#include "launcher/flags/run_options.h"
#include "rendezvous/log/etcd_client.h"

namespace cadre::launcher {

// Runs it to its end. Everything is known by now: what fails is the machine's or the server's
// doing. `ended` is told the exit status. Returns only where nothing has been started; otherwise
// the process ends here.
int RunNode(const RunOptions& options, const std::optional<log::EtcdOptions>& etcd, uint32_t slots,
            const std::function<void(int)>& ended);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_COMMANDS_RUN_NODE_H_
