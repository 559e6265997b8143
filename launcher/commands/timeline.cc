// cadre timeline: where a job's time went.
#include <errno.h>
#include <string.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "launcher/attach/control_client.h"
#include "launcher/commands/commands.h"
#include "launcher/display/timeline_svg.h"
#include "launcher/display/timeline_text.h"

namespace cadre::launcher {
namespace {

std::vector<Flag> Flags() {
  std::vector<Flag> flags = JobSourceFlags();
  flags.push_back({"svg", "FILE", "Write a picture there; - is standard output."});
  return flags;
}

int Run(const Parsed& parsed) {
  const absl::StatusOr<Settings> read = ClientSettings(parsed, Flags());
  if (!read.ok()) return Fail(kExitUsage, read.status().message());
  const Settings& settings = *read;
  absl::StatusOr<JobSource> source = OpenJob(parsed, settings);
  if (!source.ok()) return Fail(ControlExit(source.status()), source.status().message());
  const absl::StatusOr<v1::JobStatus> job = source->Get();
  if (!job.ok()) return Fail(ControlExit(job.status()), job.status().message());
  v1::Timeline timeline = job->timeline();
  timeline.set_job(job->name());
  const std::string path = settings.GetOr("svg", "");
  if (path.empty()) return Print(TimelineText(timeline));
  if (path == "-") return Print(TimelineSvg(timeline));
  std::ofstream file(path);
  file << TimelineSvg(timeline);
  file.close();
  if (!file) return Fail(kExitInternal, absl::StrCat("cannot write ", path, ": ", strerror(errno)));
  return 0;
}

}  // namespace

Command TimelineCommand() {
  Command command;
  command.name = "timeline";
  command.summary = "Show where a job's time went: generations, recoveries, progress.";
  command.positionals = "[JOB]";
  command.max_positionals = 1;
  command.flags = Flags();
  command.run = Run;
  return command;
}

}  // namespace cadre::launcher
