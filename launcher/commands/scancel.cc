// scancel: cancels jobs and steps of a cluster.
#include <signal.h>
#include <stdio.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/slurm_client.h"
#include "launcher/slurm/scancel_options.h"
#include "proto/control.pb.h"

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

v1::SignalJobRequest::Target TargetOf(const ScancelOptions& options) {
  if (options.to_all) return v1::SignalJobRequest::ALL;
  return options.to_script ? v1::SignalJobRequest::SCRIPT : v1::SignalJobRequest::STEPS;
}

// Returns false, after a line on standard error, if the job could not be cancelled, or did not get
// its signal.
bool Cancel(ControlClient& client, const JobRecord& job, const ScancelOptions& options) {
  const char* const kind = job.step.has_value() ? "step " : "";
  const std::string id = absl::StrCat(job.server_id);
  const bool cancels = options.Cancels();
  if (options.verbose) {
    Notice(absl::StrCat(cancels ? "Terminating " : "Signal ",
                        cancels ? "" : absl::StrCat(options.signal, " to "),
                        job.step.has_value() ? kind : "job ", job.Id()));
  }
  const auto done = cancels ? client.Cancel(id, "scancel", options.signal == SIGKILL)
                            : client.Signal(id, options.signal, TargetOf(options));
  // It may have ended meanwhile. Nothing of a job that waits gets a signal.
  if (done.ok() || (absl::IsFailedPrecondition(done.status()) && (cancels || options.quiet))) {
    return true;
  }
  FailAsSlurm(absl::StrCat("Kill job error on job ", kind, "id ", job.Id(), ": ",
                           absl::IsPermissionDenied(done.status()) ? "Access/permission denied"
                                                                   : done.status().message()));
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
    if (!Cancel(**client, job, *options)) status = 1;
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
