// scancel: cancels jobs and steps of a cluster.
#include <stdio.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/slurm_client.h"
#include "launcher/slurm/scancel_options.h"

namespace cadre::launcher {
namespace {

// Asks as Slurm's scancel does; anything but a "y" is a no.
bool Confirmed(const JobRecord& job) {
  if (Print(absl::StrCat("Cancel job_id=", job.Id(), " name=", job.name, " partition=", kPartition,
                         " [y/n]? ")) != 0) {
    return false;
  }
  char line[16] = "";
  return fgets(line, sizeof(line), stdin) != nullptr && (line[0] == 'y' || line[0] == 'Y');
}

// Returns false, after a line on standard error, if the job could not be cancelled.
bool Cancel(ControlClient& client, const JobRecord& job, bool verbose) {
  if (verbose) {
    Notice(absl::StrCat("Terminating ", job.step.has_value() ? "step " : "job ", job.Id()));
  }
  const auto cancelled = client.Cancel(absl::StrCat(job.server_id), "scancel");
  // It may have ended meanwhile.
  if (cancelled.ok() || absl::IsFailedPrecondition(cancelled.status())) return true;
  FailAsSlurm(absl::StrCat(
      "Kill job error on job ", job.step.has_value() ? "step " : "", "id ", job.Id(), ": ",
      absl::IsPermissionDenied(cancelled.status()) ? "Access/permission denied"
                                                   : cancelled.status().message()));
  return false;
}

int Run(const Parsed& parsed) {
  absl::StatusOr<ScancelOptions> options = ReadScancel(parsed.rest);
  if (!options.ok()) return FailUsage("scancel", options.status());
  if (options->answer == ScancelOptions::Answer::kHelp) return Print(ScancelHelp());
  if (options->answer == ScancelOptions::Answer::kVersion) return PrintSlurmVersion();
  const auto users = UserNames(options->users, options->me);
  if (!users.ok()) return FailAsSlurm(users.status().message());
  options->selection.users = *users;
  const auto client = ConnectToServer();
  if (!client.ok()) return FailAsSlurm(client.status().message());
  const absl::StatusOr<ServerJobs> jobs = LoadJobs(**client);
  if (!jobs.ok()) return FailAsSlurm(jobs.status().message());
  const ToCancel chosen = ChooseToCancel(jobs->Records(), *options);
  int status = chosen.errors.empty() ? 0 : 1;
  for (const std::string& error : chosen.errors) {
    if (!options->quiet) FailAsSlurm(error);
  }
  for (const JobRecord& job : chosen.records) {
    if (options->interactive && !Confirmed(job)) continue;
    if (!Cancel(**client, job, options->verbose)) status = 1;
  }
  return status;
}

}  // namespace

Command ScancelCommand() {
  Command command;
  command.name = "scancel";
  command.summary = "Cancel jobs and steps, as Slurm's scancel does.";
  command.own_syntax = true;
  command.run = Run;
  return command;
}

}  // namespace cadre::launcher
