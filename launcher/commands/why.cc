// cadre why: what a job waits for, and until when; why it ended, with the evidence.
#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "base/text.h"
#include "launcher/attach/control_client.h"
#include "launcher/commands/commands.h"
#include "launcher/display/cluster_text.h"
#include "launcher/display/stacks_text.h"
#include "launcher/display/status_block.h"
#include "launcher/display/verdict_text.h"
#include "rpc/job_phase.h"

namespace cadre::launcher {
namespace {

// A line for each place at which ranks are now.
std::string WhereTheyAre(JobSource& source, const std::string& job) {
  v1::GetStacksRequest request;
  request.set_job(job);
  const absl::StatusOr<v1::GetStacksReply> stacks = source.GetStacks(request);
  if (stacks.ok()) return absl::StrCat("at this moment\n", PlacesText(*stacks));
  return absl::StrCat(
      "where they are is not known: ", EscapeControl(std::string(stacks.status().message())), "\n");
}

int Run(const Parsed& parsed) {
  const absl::StatusOr<Settings> read = ClientSettings(parsed, JobSourceFlags());
  if (!read.ok()) return Fail(kExitUsage, read.status().message());
  const Settings& settings = *read;
  absl::StatusOr<JobSource> source = OpenJob(parsed, settings);
  if (!source.ok()) return Fail(ControlExit(source.status()), source.status().message());
  const absl::StatusOr<v1::JobStatus> job = source->Get();
  if (!job.ok()) return Fail(ControlExit(job.status()), job.status().message());
  if (source->run().has_value() && !job->has_verdict() && source->run()->suspended != 0) {
    return Print(absl::StrCat(job->name(), " stands still: ", SuspendedText(*source->run()), "\n"));
  }
  if (source->run().has_value() && !job->has_verdict()) {
    return Fail(1, absl::StrCat("the run of job ", job->name(), " in ", source->log_dir(),
                                " that began ", BeganText(*source->run(), absl::LocalTimeZone()),
                                " has left no verdict: it goes on elsewhere, or its launcher was "
                                "killed; 'cadre logs' has its output"));
  }
  std::string text = job->has_verdict()
                         ? absl::StrCat(job->name(), " ", OutcomeText(job->verdict()))
                         : absl::StrCat(job->name(), " is ", rpc::PhaseName(job->phase()));
  if (!job->has_verdict() && !job->stop_reason().empty()) {
    absl::StrAppend(&text, ": ", job->stop_reason());
  }
  if (!job->waiting_for().empty()) {
    absl::StrAppend(&text, " and waits for ", job->waiting_for());
  } else if (!job->has_verdict()) {
    absl::StrAppend(
        &text,
        job->stall().empty() ? ": " : absl::StrCat(" and stands still: ", job->stall(), "; "),
        job->workers_running(), " of ", Count(job->world_size(), "worker"), " run");
    if (job->has_progress()) absl::StrAppend(&text, ", ", ProgressText(job->progress()));
  }
  // Without steps nobody can say whether it gets on, but where it is.
  const bool shows_nothing = !job->has_verdict() && job->waiting_for().empty() &&
                             job->stall().empty() && !job->has_progress() &&
                             job->workers_running() > 0;
  if (shows_nothing) absl::StrAppend(&text, " and report no steps");
  const bool color = ShowsColor();
  text = EscapeControl(text);
  if (color && job->has_verdict()) text = Headline(job->verdict(), text);
  text = absl::StrCat(text, "\n", shows_nothing ? WhereTheyAre(*source, job->name()) : "",
                      AvoidedText(*job));
  if (job->has_verdict()) {
    VerdictStyle style;
    style.log_dir = source->log_dir();
    style.color = color;
    absl::StrAppend(&text, VerdictDetails(job->verdict(), style));
  }
  return Print(text);
}

}  // namespace

Command WhyCommand() {
  Command command;
  command.name = "why";
  command.summary = "Say what a job waits for, or why it ended.";
  command.positionals = "[JOB]";
  command.max_positionals = 1;
  command.flags = JobSourceFlags();
  command.run = Run;
  return command;
}

}  // namespace cadre::launcher
