// squeue: the jobs that wait or run in a cluster.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/slurm_client.h"
#include "launcher/slurm/squeue_text.h"

namespace cadre::launcher {
namespace {

// Slurm fails for a single job that it does not know, and leaves out those of several.
bool IsUnknown(const std::vector<JobRecord>& records, const SqueueOptions& options) {
  if (options.selection.ids.size() != 1) return false;
  JobSelection wanted;
  wanted.ids = options.selection.ids;
  for (const JobRecord& record : records) {
    if (wanted.Selects(record)) return false;
  }
  return true;
}

int Show(ControlClient& client, const SqueueOptions& options) {
  const absl::StatusOr<ServerJobs> jobs = LoadJobs(client);
  if (!jobs.ok()) return FailAsSlurm(jobs.status().message());
  const std::vector<JobRecord> records = jobs->Records();
  if (IsUnknown(records, options)) {
    return Fail(1, "slurm_load_jobs error: Invalid job id specified");
  }
  const absl::StatusOr<std::string> text = SqueueText(records, options, HereAndNow());
  return text.ok() ? Print(*text) : Fail(1, text.status().message());
}

int Run(const Parsed& parsed) {
  absl::StatusOr<SqueueOptions> options = ReadSqueue(parsed.rest, ReadEnvironment());
  if (!options.ok()) return FailUsage("squeue", options.status());
  if (options->answer == SqueueOptions::Answer::kHelp) return Print(SqueueHelp());
  if (options->answer == SqueueOptions::Answer::kVersion) return PrintSlurmVersion();
  const auto users = UserNames(options->users, options->me);
  if (!users.ok()) return FailAsSlurm(users.status().message());
  options->selection.users = *users;
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

Command SqueueCommand() {
  Command command;
  command.name = "squeue";
  command.summary = "Show the jobs of a cluster, as Slurm's squeue does.";
  command.own_syntax = true;
  command.run = Run;
  return command;
}

}  // namespace cadre::launcher
