// cadre why: what a job waits for, and until when.
#include "absl/strings/str_cat.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/control_client.h"
#include "launcher/display/escape.h"
#include "launcher/display/status_block.h"

namespace cadre {
namespace {

int Run(const Parsed& parsed) {
  const auto client = ControlClient::Connect(Settings(parsed, ReadEnvironment(), ControlFlags()));
  if (!client.ok()) return Fail(ControlExit(client.status()), client.status().message());
  const auto job = (*client)->Get(parsed.rest[0]);
  if (!job.ok()) return Fail(ControlExit(job.status()), job.status().message());
  std::string text = absl::StrCat(job->name(), " is ", PhaseName(job->phase()));
  if (job->has_verdict()) {
    absl::StrAppend(&text, ": ", job->verdict().message());
  } else if (!job->waiting_for().empty()) {
    absl::StrAppend(&text, " and waits for ", job->waiting_for());
  } else {
    absl::StrAppend(&text, " and waits for nothing: ", job->workers_running(), " of ",
                    job->world_size(), " workers run");
  }
  return Print(EscapeControl(text) + "\n");
}

}  // namespace

Command WhyCommand() {
  Command command;
  command.name = "why";
  command.summary = "Say what a job waits for, and until when.";
  command.positionals = "JOB";
  command.min_positionals = command.max_positionals = 1;
  command.flags = ControlFlags();
  command.run = Run;
  return command;
}

}  // namespace cadre
