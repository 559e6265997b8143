// cadre stacks: where a job's ranks are now.
#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "launcher/attach/control_client.h"
#include "launcher/commands/commands.h"
#include "launcher/display/json_text.h"
#include "launcher/display/stacks_text.h"
#include "launcher/spec/scalars.h"

namespace cadre::launcher {
namespace {

std::vector<Flag> Flags() {
  std::vector<Flag> flags = ControlFlags();
  flags.push_back({"rank", "N", "Only this worker, with all threads of all its processes."});
  flags.push_back({"native", "",
                   "With --rank: native stacks too, by eu-stack or gdb, which stop the process "
                   "while they look and need the right to trace it."});
  flags.push_back(OutputFlag());
  return flags;
}

int Run(const Parsed& parsed) {
  const absl::StatusOr<Settings> settings = ClientSettings(parsed, Flags());
  if (!settings.ok()) return Fail(kExitUsage, settings.status().message());
  const absl::StatusOr<bool> json = AsksForJson(settings->GetOr("output", "plain"));
  if (!json.ok()) return Fail(kExitUsage, json.status().message());
  v1::GetStacksRequest request;
  if (const auto rank = settings->Get("rank")) {
    const absl::StatusOr<uint32_t> number = ParseCount(rank->value);
    if (!number.ok()) {
      return Fail(kExitUsage,
                  absl::StrCat(rank->origin, ": expected a rank, got '", rank->value, "'"));
    }
    request.mutable_question()->set_one_rank(true);
    request.mutable_question()->set_rank(*number);
  }
  const auto native = settings->Switch("native");
  if (!native.ok()) return Fail(kExitUsage, native.status().message());
  if (*native && !request.question().one_rank()) {
    return Fail(kExitUsage, "--native is for one rank, since it stops it: give --rank N too");
  }
  request.mutable_question()->set_native(*native);
  absl::StatusOr<JobSource> source = OpenJob(parsed, *settings);
  if (!source.ok()) return Fail(ControlExit(source.status()), source.status().message());
  request.set_job(source->job());
  const absl::StatusOr<v1::GetStacksReply> reply = source->GetStacks(request);
  if (!reply.ok()) return Fail(ControlExit(reply.status()), reply.status().message());
  const int printed = Print(*json ? JsonText(*reply) + "\n" : StacksText(*reply));
  if (printed != 0) return printed;
  return reply->silent_size() > 0 ? kExitUnavailable : 0;
}

}  // namespace

Command StacksCommand() {
  Command command;
  command.name = "stacks";
  command.summary = "Show where a job's ranks are now, without stopping them.";
  command.positionals = "[JOB]";
  command.max_positionals = 1;
  command.flags = Flags();
  command.run = Run;
  command.description =
      "Every node's agent is asked; ranks at the same place are shown together, the most recent "
      "call first, with '>' at lines of the user's own program. Of programs that are not Python it "
      "shows what the kernel and their progress pages tell. Nodes that do not answer within 2.5 s "
      "are named at the end, and the exit status is then 69.";
  return command;
}

}  // namespace cadre::launcher
