// cadre dashboard: a page in the browser of what past runs have left in their log directories.
#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "base/token.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/job_source.h"
#include "launcher/commands/past_dashboard.h"

namespace cadre::launcher {
namespace {

std::vector<Flag> Flags() {
  return {{"log-dir", "DIR", "Runs that lie there [./logs and the directories used last]."}};
}

// Those are blocked (launcher/cadre_main.cc).
void AwaitSignal() {
  sigset_t ending;
  sigemptyset(&ending);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) sigaddset(&ending, signal);
  int signal = 0;
  while (sigwait(&ending, &signal) != 0) {
  }
}

int Run(const Parsed& parsed) {
  const absl::StatusOr<Settings> settings = MachineSettings(parsed, Flags(), "dashboard", {});
  if (!settings.ok()) return Fail(kExitUsage, settings.status().message());
  const std::vector<std::string> directories = LogDirectories(*settings);
  if (directories.empty()) {
    return Fail(1,
                "there is no log directory ./logs, and none was used before; --log-dir DIR names "
                "one");
  }
  bool any = false;
  for (const std::string& directory : directories) any = any || !RunsIn(directory, "").empty();
  if (!any) {
    return Fail(1,
                absl::StrCat("no run has left its files in ", directories[0],
                             directories.size() > 1 ? " nor in the directories used last" : "",
                             "; --log-dir DIR takes the directory that a run's --log-dir named"));
  }
  const std::string token = RandomToken();
  const auto dashboard = PastDashboard::Start(directories, token);
  if (!dashboard.ok()) return Fail(kExitUnavailable, dashboard.status().message());
  // The part after '#' is not sent, and so stands in no log; the page says it where it is asked
  // for.
  const int printed =
      Print(absl::StrCat("http://127.0.0.1:", (*dashboard)->port(), "/#token=", token, "\n"));
  if (printed != 0) return printed;
  Fail(0, "shows past runs at this address until Ctrl-C");
  AwaitSignal();
  return 0;
}

}  // namespace

Command DashboardCommand() {
  Command command;
  command.name = "dashboard";
  command.summary = "Show past runs in the browser, and compare them.";
  command.flags = Flags();
  command.run = Run;
  return command;
}

}  // namespace cadre::launcher
