// sinfo: the nodes of a cluster.
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/slurm_client.h"
#include "launcher/slurm/sinfo_text.h"

namespace cadre::launcher {
namespace {

int Show(ControlClient& client, const SinfoOptions& options) {
  const absl::StatusOr<v1::ListNodesReply> nodes = client.Nodes();
  if (!nodes.ok()) return FailAsSlurm(nodes.status().message());
  const absl::StatusOr<std::string> text = SinfoText(NodesOf(*nodes), options, HereAndNow());
  return text.ok() ? Print(*text) : Fail(1, text.status().message());
}

int Run(const Parsed& parsed) {
  const absl::StatusOr<SinfoOptions> options = ReadSinfo(parsed.rest, ReadEnvironment());
  if (!options.ok()) return FailUsage("sinfo", options.status());
  if (options->answer == SinfoOptions::Answer::kHelp) return Print(SinfoHelp());
  if (options->answer == SinfoOptions::Answer::kVersion) return PrintSlurmVersion();
  const auto client = ConnectToServer();
  if (!client.ok()) return FailAsSlurm(client.status().message());
  for (;;) {
    const int status = Show(**client, *options);
    if (options->every_seconds == 0 || status != 0) return status;
    if (Print("\n") != 0) return 1;
    absl::SleepFor(absl::Seconds(options->every_seconds));
  }
}

}  // namespace

Command SinfoCommand() {
  Command command;
  command.name = "sinfo";
  command.summary = "Show the nodes of a cluster, as Slurm's sinfo does.";
  command.own_syntax = true;
  command.run = Run;
  return command;
}

}  // namespace cadre::launcher
