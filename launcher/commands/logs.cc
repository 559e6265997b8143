// cadre logs: what a job's workers wrote, wherever they ran.
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "launcher/attach/control_client.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/job_source.h"
#include "launcher/commands/log_follow.h"
#include "launcher/spec/scalars.h"

namespace cadre::launcher {
namespace {

std::vector<Flag> Flags() {
  std::vector<Flag> flags = JobSourceFlags();
  flags.push_back({"rank", "N", "Only this worker's, without the prefix [the first 64]."});
  flags.push_back({"generation", "N",
                   "Only this generation's, or 'previous': of the one before [the newest]."});
  flags.push_back(
      {"tail", "N", "Of what is there only the last N lines of each stream of each rank."});
  flags.push_back({"follow", "", "Go on until the job ends; exits with the job's exit status."});
  flags.push_back({"raw", "",
                   "Control characters go to a terminal too, as they do to a pipe; without it they "
                   "are shown as \\xNN, colours aside."});
  return flags;
}

int Run(const Parsed& parsed) {
  const absl::StatusOr<Settings> settings = ClientSettings(parsed, Flags());
  if (!settings.ok()) return Fail(kExitUsage, settings.status().message());
  LogFollow what;
  what.job = parsed.rest[0];
  const auto follow = settings->Switch("follow");
  if (!follow.ok()) return Fail(kExitUsage, follow.status().message());
  what.follow = *follow;
  const auto raw = settings->Switch("raw");
  if (!raw.ok()) return Fail(kExitUsage, raw.status().message());
  if (!*raw) ProtectTerminals(&what);
  if (const auto rank = settings->Get("rank")) {
    const absl::StatusOr<uint32_t> number = ParseCount(rank->value);
    if (!number.ok()) {
      return Fail(kExitUsage,
                  absl::StrCat(rank->origin, ": expected a rank, got '", rank->value, "'"));
    }
    what.rank = *number;
  }
  if (const auto generation = settings->Get("generation")) {
    uint64_t number = 0;
    what.previous = generation->value == "previous";
    if (!what.previous && (!absl::SimpleAtoi(generation->value, &number) || number == 0)) {
      return Fail(kExitUsage, absl::StrCat(generation->origin,
                                           ": expected a generation's number or 'previous', ",
                                           "got '", generation->value, "'"));
    }
    if (!what.previous) what.generation = number;
  }
  if (const auto tail = settings->Get("tail")) {
    uint64_t lines = 0;
    if (!absl::SimpleAtoi(tail->value, &lines)) {
      return Fail(kExitUsage, absl::StrCat(tail->origin, ": expected a number of lines, got '",
                                           tail->value, "'"));
    }
    what.tail = lines;
  }
  absl::StatusOr<JobSource> source = JobSource::Of(*settings, what.job);
  if (!source.ok()) return Fail(ControlExit(source.status()), source.status().message());
  return FollowLogs({[&](const std::string&) { return source->Get(); },
                     [&](const v1::ReadLogRequest& request) { return source->ReadLog(request); }},
                    what);
}

}  // namespace

Command LogsCommand() {
  Command command;
  command.name = "logs";
  command.summary = "Show what a job's workers wrote, by rank.";
  command.positionals = "JOB";
  command.min_positionals = command.max_positionals = 1;
  command.flags = Flags();
  command.run = Run;
  return command;
}

}  // namespace cadre::launcher
