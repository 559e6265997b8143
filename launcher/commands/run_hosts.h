// cadre run --hostfile: serves the rendezvous here and starts a launcher on every host of the file,
// over ssh or directly if the host is this machine. Each gets the job's token on its standard
// input.
#ifndef CADRE_LAUNCHER_COMMANDS_RUN_HOSTS_H_
#define CADRE_LAUNCHER_COMMANDS_RUN_HOSTS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/display.h"
#include "launcher/environment/hostfile.h"
#include "launcher/flags/command.h"
#include "launcher/flags/run_options.h"
#include "launcher/flags/settings.h"

namespace cadre::launcher {

// Blocks until the job has ended on all hosts, and returns the exit status. The signals of
// `options` must be blocked; they end the job. `display` draws the job's state below the output of
// all hosts, which then passes through this launcher; null: the launchers write it themselves.
// `say` prints lines for the user. INVALID_ARGUMENT: a host or the ssh command is not valid; other
// errors: the rendezvous or ssh could not be started.
absl::StatusOr<int> RunOnHosts(const Parsed& parsed, const Settings& settings,
                               const RunOptions& options, const std::vector<HostfileHost>& hosts,
                               agent::Display* display,
                               const std::function<void(const std::string&)>& say);

// The hosts of the file that --hostfile names. NOT_FOUND, INVALID_ARGUMENT.
absl::StatusOr<std::vector<HostfileHost>> ReadHostfile(const std::string& path);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_COMMANDS_RUN_HOSTS_H_
