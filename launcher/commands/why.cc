// cadre why: what a job waits for, and until when; why it ended, with the evidence.
#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "base/text.h"
#include "launcher/attach/control_client.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/job_source.h"
#include "launcher/display/cluster_text.h"
#include "launcher/display/status_block.h"
#include "launcher/display/verdict_text.h"
#include "rpc/job_phase.h"

namespace cadre::launcher {
namespace {

int Run(const Parsed& parsed) {
  const absl::StatusOr<Settings> read = ClientSettings(parsed, JobSourceFlags());
  if (!read.ok()) return Fail(kExitUsage, read.status().message());
  const Settings& settings = *read;
  const auto job = FindJob(settings, parsed.rest[0]);
  if (!job.ok()) return Fail(ControlExit(job.status()), job.status().message());
  std::string text = job->has_verdict()
                         ? absl::StrCat(job->name(), " ", OutcomeText(job->verdict()))
                         : absl::StrCat(job->name(), " is ", rpc::PhaseName(job->phase()));
  if (!job->has_verdict() && !job->stop_reason().empty()) {
    absl::StrAppend(&text, ": ", job->stop_reason());
  }
  if (!job->waiting_for().empty()) {
    absl::StrAppend(&text, " and waits for ", job->waiting_for());
  } else if (!job->has_verdict()) {
    absl::StrAppend(&text,
                    job->stall().empty() ? " and waits for nothing: "
                                         : absl::StrCat(" and stands still: ", job->stall(), "; "),
                    job->workers_running(), " of ", Count(job->world_size(), "worker"), " run");
    if (job->has_progress()) absl::StrAppend(&text, ", ", ProgressText(job->progress()));
  }
  text = absl::StrCat(EscapeControl(text), "\n", AvoidedText(*job));
  if (job->has_verdict()) {
    absl::StrAppend(&text, VerdictDetails(job->verdict(), settings.GetOr("log-dir", ""),
                                          absl::LocalTimeZone()));
  }
  return Print(text);
}

}  // namespace

Command WhyCommand() {
  Command command;
  command.name = "why";
  command.summary = "Say what a job waits for, or why it ended.";
  command.positionals = "JOB";
  command.min_positionals = command.max_positionals = 1;
  command.flags = JobSourceFlags();
  command.run = Run;
  return command;
}

}  // namespace cadre::launcher
