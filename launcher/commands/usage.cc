// cadre usage: what the jobs of a cluster used, lost and wasted.
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/exit_codes.h"
#include "launcher/attach/control_client.h"
#include "launcher/commands/accounting_request.h"
#include "launcher/commands/commands.h"
#include "launcher/display/accounting_text.h"
#include "launcher/display/output_format.h"
#include "proto/accounting.pb.h"

namespace cadre::launcher {
namespace {

int Run(const Parsed& parsed) {
  const absl::StatusOr<Settings> settings = ClientSettings(parsed, UsageFlags());
  if (!settings.ok()) return Fail(kExitUsage, settings.status().message());
  const absl::StatusOr<bool> json = AsksForJson(settings->GetOr("output", "plain"));
  if (!json.ok()) return Fail(kExitUsage, json.status().message());
  const absl::StatusOr<v1::UsageRequest> request =
      ReadUsage(parsed, absl::Now(), absl::LocalTimeZone());
  if (!request.ok()) return Fail(kExitUsage, request.status().message());
  const auto client = ControlClient::Connect(*settings);
  if (!client.ok()) return Fail(ControlExit(client.status()), client.status().message());
  const absl::StatusOr<v1::UsageReply> usage = (*client)->Usage(*request);
  if (!usage.ok()) return Fail(ControlExit(usage.status()), usage.status().message());
  if (!usage->trouble().empty()) Notice(usage->trouble());
  if (*json || parsed.Has("json")) return Print(JsonText(*usage) + "\n");
  return Print(UsageTable(*usage, request->by()));
}

}  // namespace

Command UsageCommand() {
  Command command;
  command.name = "usage";
  command.summary =
      "Show the GPU and CPU hours that ended jobs of a cluster used, lost and wasted.";
  command.flags = UsageFlags();
  command.description =
      "Jobs count when they have ended. Hours are lost between a failure and the next workers, and "
      "wasted in jobs that failed in the end; both are part of those used. docs/accounting.md "
      "defines them.";
  command.run = Run;
  return command;
}

}  // namespace cadre::launcher
