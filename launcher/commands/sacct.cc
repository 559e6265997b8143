// sacct: jobs and steps of a cluster, also those that have ended.
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/slurm_client.h"
#include "launcher/slurm/sacct_text.h"

namespace cadre::launcher {
namespace {

// Whether a field is about the nodes of jobs. Those of a job that has ended are another request.
bool ShowsNodes(const SacctOptions& options) {
  const std::string format = absl::AsciiStrToLower(options.format);
  return options.json || absl::StrContains(format, "node") || absl::StrContains(format, "tres");
}

int Run(const Parsed& parsed) {
  const TextSurroundings at = HereAndNow();
  absl::StatusOr<SacctOptions> options = ReadSacct(parsed.rest, ReadEnvironment(), at.now, at.zone);
  if (!options.ok()) return FailUsage("sacct", options.status());
  if (options->answer == SacctOptions::Answer::kHelp) return Print(SacctHelp());
  if (options->answer == SacctOptions::Answer::kFields) return Print(SacctFields());
  if (options->answer == SacctOptions::Answer::kVersion) return PrintSlurmVersion();
  const bool own = options->users.empty() && !options->all_users;
  const auto users = UserNames(options->users, own);
  if (!users.ok()) return FailAsSlurm(users.status().message());
  options->selection.users = *users;
  const auto client = ConnectToServer();
  if (!client.ok()) return FailAsSlurm(client.status().message());
  absl::StatusOr<ServerJobs> jobs = LoadJobs(**client);
  if (!jobs.ok()) return FailAsSlurm(jobs.status().message());
  std::vector<JobRecord> chosen = ChooseForSacct(jobs->Records(), *options, at.now);
  if (ShowsNodes(*options)) {
    const absl::Status loaded = LoadEndedJobs(**client, chosen, &*jobs);
    if (!loaded.ok()) return FailAsSlurm(loaded.message());
    chosen = ChooseForSacct(jobs->Records(), *options, at.now);
  }
  const absl::StatusOr<std::string> text = SacctText(chosen, *options, at);
  return text.ok() ? Print(*text) : Fail(1, text.status().message());
}

}  // namespace

Command SacctCommand() {
  Command command;
  command.name = "sacct";
  command.summary = "Show jobs that run and have ended, as Slurm's sacct does.";
  command.own_syntax = true;
  command.run = Run;
  return command;
}

}  // namespace cadre::launcher
