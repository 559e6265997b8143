// cadre history: jobs that have ended.
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "agent/cluster/users.h"
#include "base/exit_codes.h"
#include "base/status_macros.h"
#include "launcher/attach/control_client.h"
#include "launcher/commands/accounting_request.h"
#include "launcher/commands/change_jobs.h"
#include "launcher/commands/commands.h"
#include "launcher/display/accounting_text.h"
#include "launcher/display/output_format.h"
#include "proto/accounting.pb.h"

namespace cadre::launcher {
namespace {

int Run(const Parsed& parsed) {
  const absl::StatusOr<Settings> settings = ClientSettings(parsed, HistoryFlags());
  if (!settings.ok()) return Fail(kExitUsage, settings.status().message());
  const absl::StatusOr<bool> json = AsksForJson(settings->GetOr("output", "plain"));
  if (!json.ok()) return Fail(kExitUsage, json.status().message());
  const absl::StatusOr<v1::HistoryRequest> request =
      ReadHistory(parsed, absl::Now(), absl::LocalTimeZone(), []() -> absl::StatusOr<std::string> {
        ASSIGN_OR_RETURN(const agent::UserEntry user, agent::ThisUser());
        return user.name;
      });
  if (!request.ok()) return Fail(kExitUsage, request.status().message());
  const auto client = ControlClient::Connect(*settings);
  if (!client.ok()) return Fail(ControlExit(client.status()), client.status().message());
  absl::StatusOr<v1::HistoryReply> history = (*client)->History(*request);
  if (!history.ok()) return Fail(ControlExit(history.status()), history.status().message());
  KeepNamed(parsed.rest, &*history);
  if (!history->trouble().empty()) Notice(history->trouble());
  if (*json || parsed.Has("json")) return Print(JsonText(*history) + "\n");
  if (history->more()) {
    Notice(
        absl::StrCat("only the last ", history->jobs_size(), " are shown; --limit N shows more"));
  }
  return Print(HistoryTable(*history, absl::LocalTimeZone()));
}

}  // namespace

Command HistoryCommand() {
  Command command;
  command.name = "history";
  command.summary = "Show jobs of a cluster that have ended, also long ago.";
  command.positionals = "[JOB...]";
  command.max_positionals = kMostJobs;
  command.flags = HistoryFlags();
  command.description =
      "JOB is the id of a job, of an array or one of its elements (57_3), of a step (57.2), or a "
      "name. The one that ended last comes first. docs/accounting.md says what is kept.";
  command.run = Run;
  return command;
}

}  // namespace cadre::launcher
