// cadre logs: what a job's workers wrote, wherever they ran.
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/exit_codes.h"
#include "launcher/attach/control_client.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/job_source.h"
#include "launcher/commands/log_follow.h"
#include "launcher/commands/log_times.h"
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
  flags.push_back({"since", "TIME",
                   "Only what was written since then: 5m ago, 12:30, 2026-11-29T12:30. For output "
                   "on this machine or in --log-dir."});
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
  if (const auto since = settings->Get("since")) {
    const absl::StatusOr<absl::Time> time =
        ParseSince(since->value, absl::Now(), absl::LocalTimeZone());
    if (!time.ok()) {
      return Fail(kExitUsage, absl::StrCat(since->origin, ": ", time.status().message()));
    }
    what.since = *time;
  }
  absl::StatusOr<JobSource> source = OpenJob(parsed, *settings);
  if (!source.ok()) return Fail(ControlExit(source.status()), source.status().message());
  what.job = source->job();
  LogServer server = {[&](const std::string&) { return source->Get(); },
                      [&](const v1::ReadLogRequest& request) { return source->ReadLog(request); }};
  if (source->HasFiles()) {
    server.times = [&](const v1::ReadLogRequest& request) { return source->LogTimes(request); };
  } else if (what.since.has_value()) {
    return Fail(kExitUsage,
                "--since: a server does not tell when output was written; leave it out, or give "
                "--log-dir DIR where the job's files are");
  }
  return FollowLogs(server, what);
}

}  // namespace

Command LogsCommand() {
  Command command;
  command.name = "logs";
  command.summary = "Show what a job's workers wrote, by rank.";
  command.positionals = "[JOB]";
  command.max_positionals = 1;
  command.flags = Flags();
  command.run = Run;
  return command;
}

}  // namespace cadre::launcher
