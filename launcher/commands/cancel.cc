// cadre cancel: ends a job with grace.
#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "launcher/attach/control_client.h"
#include "launcher/commands/commands.h"

namespace cadre::launcher {
namespace {

std::vector<Flag> Flags() {
  std::vector<Flag> flags = ControlFlags();
  flags.push_back({"reason", "TEXT", "What the verdict says [a user's request]."});
  return flags;
}

int Run(const Parsed& parsed) {
  const absl::StatusOr<Settings> read = ClientSettings(parsed, Flags());
  if (!read.ok()) return Fail(kExitUsage, read.status().message());
  const Settings& settings = *read;
  absl::StatusOr<JobSource> source = OpenJob(parsed, settings);
  if (!source.ok()) return Fail(ControlExit(source.status()), source.status().message());
  const auto job = source->Cancel(settings.GetOr("reason", "a user's request"));
  if (!job.ok()) return Fail(ControlExit(job.status()), job.status().message());
  return Print(absl::StrCat("cancelling ", source->job(), "\n"));
}

}  // namespace

Command CancelCommand() {
  Command command;
  command.name = "cancel";
  command.summary = "Stop a job on all its nodes, with grace.";
  command.positionals = "JOB";
  command.min_positionals = command.max_positionals = 1;
  command.flags = Flags();
  command.run = Run;
  return command;
}

}  // namespace cadre::launcher
